#include "engine/model/plain_latents.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "engine/model/hadamard.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/dtype.h"

namespace latentd {
namespace {

constexpr int kSinks = 4;

// The factors of all layers: one down per projection, one up for all of them.
struct PlainFactors {
  std::vector<std::vector<uint16_t>> downs;  // [kv_heads * dims, hidden] fp16
  std::vector<float> up;                     // [kv_heads * head_dim, dims]
};

// H [dims, dims] times a head's rows of the projection, into down [dims, hidden]; the head's dims
// from head_dim on, which pad it to whole tiles, count as zero.
void RotateHead(const TensorView& weight, int64_t head, const std::vector<double>& h, int dims,
                int head_dim, uint16_t* down) {
  constexpr int64_t kTile = 64;  // columns of all rows that stay in cache
  const int64_t hidden = weight.cols;
  std::vector<float> rows(head_dim * hidden);
  for (int i = 0; i < head_dim; ++i) {
    DequantizeRow(weight, head * head_dim + i, absl::MakeSpan(rows).subspan(i * hidden, hidden));
  }
  for (int64_t begin = 0; begin < hidden; begin += kTile) {
    const int64_t count = std::min(kTile, hidden - begin);
    for (int d = 0; d < dims; ++d) {
      float sums[kTile] = {};
      for (int i = 0; i < head_dim; ++i) {
        const auto factor = static_cast<float>(h[d * dims + i]);
        const float* row = rows.data() + i * hidden + begin;
        for (int64_t c = 0; c < count; ++c) sums[c] += factor * row[c];
      }
      std::transform(sums, sums + count, down + d * hidden + begin, FloatToHalf);
    }
  }
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

absl::StatusOr<std::unique_ptr<Latents>> MakePlainLatents(const Checkpoint& checkpoint, int bits,
                                                          int threads) {
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
  // The projections first, then the heads of all of them on all threads.
  std::vector<TensorView> weights;  // of layer 0's k and v, layer 1's, ...
  for (int l = 0; l < config.num_layers; ++l) {
    for (const char* projection : {"k", "v"}) {
      const std::string name = absl::StrCat("layers.", l, ".", projection, ".weight");
      const std::optional<TensorView> weight = checkpoint.Find(name);
      if (!weight.has_value()) {
        return absl::NotFoundError(absl::StrCat("the model has no tensor ", name));
      }
      weights.push_back(*weight);
      factors->downs.emplace_back(int64_t{config.num_kv_heads} * dims * weight->cols);
    }
  }
  const int64_t heads = config.num_kv_heads;
  ThreadPool pool(threads);
  pool.ParallelFor(std::ssize(weights) * heads, 1, [&](int64_t item, int64_t, int) {
    const TensorView& weight = weights[item / heads];
    RotateHead(weight, item % heads, h, dims, config.head_dim,
               factors->downs[item / heads].data() + item % heads * dims * weight.cols);
  });
  const auto down = [&](int index) {
    return TensorView{.dtype = DType::kF16,
                      .rows = heads * dims,
                      .cols = weights[index].cols,
                      .data = reinterpret_cast<const std::byte*>(factors->downs[index].data())};
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
                      .k_down = down(2 * l),
                      .k_up = up,
                      .v_down = down(2 * l + 1),
                      .v_up = up};
    latents->layers.push_back(std::move(layer));
  }
  latents->storage = std::move(factors);
  return latents;
}

}  // namespace latentd
