#include "engine/compressor/palu.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/message.h"
#include "base/status_macros.h"
#include "engine/compressor/hadamard.h"

namespace latentd {
namespace {

std::optional<Codec> CodecOf(int bits) {
  switch (bits) {
    case 32:
      return Codec::kF32;
    case 16:
      return Codec::kF16;
    case 8:
      return Codec::kInt8;
    case 4:
      return Codec::kMinMax4;
    case 3:
      return Codec::kMinMax3;
    case 2:
      return Codec::kMinMax2;
    default:
      return std::nullopt;
  }
}

Matrix RowsOf(const TensorView& view, int64_t begin, int64_t count) {
  Matrix out(static_cast<int>(count), static_cast<int>(view.cols));
  std::vector<float> row(view.cols);
  for (int64_t r = 0; r < count; ++r) {
    DequantizeRow(view, begin + r, absl::MakeSpan(row));
    std::copy(row.begin(), row.end(), out.values.begin() + r * view.cols);
  }
  return out;
}

void AppendNumbers(const Matrix& matrix, DType dtype, std::vector<uint8_t>* out) {
  for (const double value : matrix.values) {
    const float single = static_cast<float>(value);
    const uint16_t half = FloatToHalf(single);
    const size_t size = dtype == DType::kF32 ? sizeof(single) : sizeof(half);
    const void* bytes = dtype == DType::kF32 ? static_cast<const void*>(&single) : &half;
    out->resize(out->size() + size);
    std::memcpy(out->data() + out->size() - size, bytes, size);
  }
}

TensorView ViewOf(const std::vector<uint8_t>& numbers, DType dtype, int64_t cols) {
  return {.dtype = dtype,
          .rows = static_cast<int64_t>(numbers.size()) / RowBytes(dtype, cols),
          .cols = cols,
          .data = reinterpret_cast<const std::byte*>(numbers.data())};
}

// The factors of a K or V projection [kv_dim, hidden].
absl::StatusOr<PlaneFactors> FactorizePlane(const TensorView& weight, const Matrix& moment,
                                            const PaluOptions& options, const ModelConfig& config,
                                            TileOrder order) {
  const int dims = LatentDims(options, config);
  const int width = options.heads_per_group * config.head_dim;
  PlaneFactors out{.plane = {.latent_heads = config.num_kv_heads / options.heads_per_group,
                             .segments = {{.dims = dims, .codec = *CodecOf(options.bits)}},
                             .order = order},
                   .dtype = options.bits == 32 ? DType::kF32 : DType::kF16};
  const Matrix rotation = options.hadamard ? HadamardRotation(dims) : Matrix();
  for (int head = 0; head < out.plane.latent_heads; ++head) {
    ASSIGN_OR_RETURN(Factors factors,
                     Factorize(RowsOf(weight, int64_t{head} * width, width), moment, dims));
    if (options.hadamard) Rotate(rotation, &factors);
    AppendNumbers(factors.down, out.dtype, &out.down);
    AppendNumbers(factors.up, out.dtype, &out.up);
    out.energy_kept += factors.energy_kept / out.plane.latent_heads;
  }
  return out;
}

}  // namespace

absl::StatusOr<Factors> Factorize(const Matrix& weight, const Matrix& moment, int latent_dim) {
  const Matrix energy = Multiply(Multiply(weight, moment), Transpose::kNo, weight,
                                 Transpose::kYes);  // W E[x x^T] W^T
  ASSIGN_OR_RETURN(const Eigen eigen, SymmetricEigen(energy));
  const int rows = weight.rows;
  Matrix basis(rows, latent_dim);  // U_r
  for (int r = 0; r < rows; ++r) {
    for (int c = 0; c < latent_dim; ++c) basis.at(r, c) = eigen.vectors.at(r, c);
  }
  Factors factors{.down = Multiply(basis, Transpose::kYes, weight, Transpose::kNo),
                  .up = basis,
                  .energy_kept = 1};
  double kept = 0, total = 0;
  for (int c = 0; c < rows; ++c) {
    const double value = std::max(0.0, eigen.values[c]);
    total += value;
    if (c < latent_dim) kept += value;
  }
  if (total > 0) factors.energy_kept = kept / total;
  // sigma = sqrt(eigenvalue) splits evenly: up takes sigma^(1/2), down sigma^(-1/2). Directions
  // without energy keep scale 1.
  const double floor = 1e-12 * std::max(eigen.values[0], 1e-300);
  for (int c = 0; c < latent_dim; ++c) {
    const double root = eigen.values[c] > floor ? std::pow(eigen.values[c], 0.25) : 1.0;
    for (int r = 0; r < rows; ++r) factors.up.at(r, c) *= root;
    for (int d = 0; d < weight.cols; ++d) factors.down.at(c, d) /= root;
  }
  return factors;
}

void Rotate(const Matrix& rotation, Factors* factors) {
  factors->down = Multiply(rotation, factors->down);
  factors->up = Multiply(factors->up, Transpose::kNo, rotation, Transpose::kYes);
}

absl::StatusOr<int> HeadsPerGroup(std::string_view text, int num_kv_heads) {
  if (text == "all") return num_kv_heads;
  if (text.empty()) {
    for (const int group : {4, 3, 2}) {
      if (num_kv_heads % group == 0) return group;
    }
    return num_kv_heads;
  }
  int group = 0;
  if (!absl::SimpleAtoi(std::string(text), &group)) {
    return absl::InvalidArgumentError(Message("--group is \"", text,
                                              "\", allowed: all, or a "
                                              "divisor of the model's ",
                                              num_kv_heads, " KV heads"));
  }
  return group;
}

int LatentDims(const PaluOptions& options, const ModelConfig& config) {
  const double dims = (1.0 - options.rate) * options.heads_per_group * config.head_dim;
  return std::max(kTileDims, static_cast<int>(std::lround(dims / kTileDims)) * kTileDims);
}

absl::Status Validate(const PaluOptions& options, const ModelConfig& config) {
  if (!(options.rate >= 0 && options.rate < 1)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--rate is ", options.rate, ", allowed: 0 (nothing cut) up to below 1"));
  }
  if (!CodecOf(options.bits).has_value()) {
    return absl::InvalidArgumentError(
        absl::StrCat("--bits is ", options.bits, ", allowed: 32, 16, 8, 4, 3, 2"));
  }
  if (options.heads_per_group < 1 || config.num_kv_heads % options.heads_per_group != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--group is ", options.heads_per_group,
                     ", it must divide the model's KV heads, which are ", config.num_kv_heads));
  }
  const int width = options.heads_per_group * config.head_dim;
  if (LatentDims(options, config) > width) {
    return absl::InvalidArgumentError(absl::StrCat("--group ", options.heads_per_group, " has ",
                                                   width, " dims, a latent needs at least ",
                                                   kTileDims));
  }
  return absl::OkStatus();
}

std::string Describe(const PaluOptions& options, const ModelConfig& config) {
  const std::string group = options.heads_per_group == config.num_kv_heads
                                ? "all KV heads"
                                : absl::StrCat(options.heads_per_group, " KV heads");
  return absl::StrCat("palu, rate ", options.rate, ", ", options.bits, " bits, groups of ", group,
                      options.hadamard ? "" : ", no Hadamard");
}

absl::StatusOr<LayerFactors> FactorizeLayer(const Checkpoint& checkpoint, int layer,
                                            const Matrix& moment, const PaluOptions& options) {
  const auto factorize = [&](const char* projection,
                             TileOrder order) -> absl::StatusOr<PlaneFactors> {
    const std::string name = absl::StrCat("layers.", layer, ".", projection, ".weight");
    const std::optional<TensorView> weight = checkpoint.Find(name);
    if (!weight.has_value()) {
      return absl::NotFoundError(absl::StrCat("the model has no tensor ", name));
    }
    return FactorizePlane(*weight, moment, options, checkpoint.config(), order);
  };
  LayerFactors out;
  ASSIGN_OR_RETURN(out.k, factorize("k", TileOrder::kDimMajor));
  ASSIGN_OR_RETURN(out.v, factorize("v", TileOrder::kTokenMajor));
  return out;
}

TensorView PlaneFactors::DownView(int64_t hidden_dim) const {
  return ViewOf(down, dtype, hidden_dim);
}

TensorView PlaneFactors::UpView() const { return ViewOf(up, dtype, plane.dims()); }

LatentLayer LayerFactors::View(int64_t hidden_dim) const {
  return {.cache = {.k = k.plane, .v = v.plane},
          .k_down = k.DownView(hidden_dim),
          .k_up = k.UpView(),
          .v_down = v.DownView(hidden_dim),
          .v_up = v.UpView()};
}

}  // namespace latentd
