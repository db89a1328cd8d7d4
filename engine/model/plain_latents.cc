#include "engine/model/plain_latents.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/model/hadamard.h"
#include "kernels/dtype.h"

namespace latentd {
namespace {

constexpr int kSinks = 4;

// The factors of all layers: one down per projection, one up for all of them.
struct PlainFactors {
  std::vector<std::vector<uint16_t>> downs;  // [kv_heads * dims, hidden] fp16
  std::vector<float> up;                     // [kv_heads * head_dim, dims]
};

// H [dims, dims] times each head's rows of the projection; a head's dims from head_dim on, which
// pad it to whole tiles, count as zero.
std::vector<uint16_t> Rotate(const TensorView& weight, const std::vector<double>& h, int dims,
                             int head_dim) {
  const int64_t heads = weight.rows / head_dim, hidden = weight.cols;
  std::vector<uint16_t> down(heads * dims * hidden);
  std::vector<float> row(hidden), head(dims * hidden);
  for (int64_t g = 0; g < heads; ++g) {
    std::fill(head.begin(), head.end(), 0.0f);
    for (int i = 0; i < head_dim; ++i) {
      DequantizeRow(weight, g * head_dim + i, absl::MakeSpan(row));
      for (int d = 0; d < dims; ++d) {
        const float factor = static_cast<float>(h[d * dims + i]);
        float* out = head.data() + d * hidden;
        for (int64_t c = 0; c < hidden; ++c) out[c] += factor * row[c];
      }
    }
    std::transform(head.begin(), head.end(), down.begin() + g * dims * hidden, FloatToHalf);
  }
  return down;
}

// The first head_dim rows of H^T, for each head.
std::vector<float> Unrotate(const std::vector<double>& h, int dims, int head_dim, int heads) {
  std::vector<float> up;
  for (int r = 0; r < heads * head_dim; ++r) {
    for (int d = 0; d < dims; ++d) {
      up.push_back(static_cast<float>(h[d * dims + r % head_dim]));
    }
  }
  return up;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Latents>> MakePlainLatents(const Checkpoint& checkpoint, int bits) {
  const ModelConfig& config = checkpoint.config();
  const std::optional<Codec> codec = GridCodec(bits);
  if (!codec.has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("codes of ", bits, " bits, there are codes of 8, 4, 3 and 2"));
  }
  const int dims = (config.head_dim + kTileDims - 1) / kTileDims * kTileDims;
  const std::vector<double> h = HadamardRotation(dims);
  auto factors = std::make_shared<PlainFactors>();
  factors->up = Unrotate(h, dims, config.head_dim, config.num_kv_heads);
  const TensorView up{.dtype = DType::kF32,
                      .rows = config.kv_dim(),
                      .cols = dims,
                      .data = reinterpret_cast<const std::byte*>(factors->up.data())};
  const auto make_down = [&](const std::string& name) -> absl::StatusOr<TensorView> {
    const std::optional<TensorView> weight = checkpoint.Find(name);
    if (!weight.has_value()) {
      return absl::NotFoundError(absl::StrCat("the model has no tensor ", name));
    }
    factors->downs.push_back(Rotate(*weight, h, dims, config.head_dim));
    return TensorView{.dtype = DType::kF16,
                      .rows = int64_t{config.num_kv_heads} * dims,
                      .cols = weight->cols,
                      .data = reinterpret_cast<const std::byte*>(factors->downs.back().data())};
  };
  const auto plane = [&](TileOrder order) {
    return CachePlane{.latent_heads = config.num_kv_heads,
                      .segments = {{.dims = dims, .codec = *codec}},
                      .order = order};
  };
  auto latents = std::make_unique<Latents>();
  latents->method = absl::StrCat(bits, "-bit codes, full rank, Hadamard");
  for (int l = 0; l < config.num_layers; ++l) {
    LatentLayer layer{.cache = {.k = plane(TileOrder::kDimMajor),
                                .v = plane(TileOrder::kTokenMajor),
                                .sinks = kSinks,
                                .sink_dims = config.kv_dim(),
                                .key_norms = config.qk_norm ? config.num_kv_heads : 0},
                      .k_up = up,
                      .v_up = up};
    ASSIGN_OR_RETURN(layer.k_down, make_down(absl::StrCat("layers.", l, ".k.weight")));
    ASSIGN_OR_RETURN(layer.v_down, make_down(absl::StrCat("layers.", l, ".v.weight")));
    latents->layers.push_back(std::move(layer));
  }
  latents->storage = std::move(factors);
  return latents;
}

}  // namespace latentd
