#include "engine/compressor/plane_factors.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/message.h"
#include "engine/model/hadamard.h"

namespace latentd {
namespace {

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

TensorView RowView(const std::vector<float>& values) {
  if (values.empty()) return {};
  return {.dtype = DType::kF32,
          .rows = 1,
          .cols = static_cast<int64_t>(values.size()),
          .data = reinterpret_cast<const std::byte*>(values.data())};
}

}  // namespace

void RotateSegments(const std::vector<Segment>& segments, Factors* factors) {
  int begin = 0;
  for (const Segment& segment : segments) {
    Matrix rotation(segment.dims, segment.dims);
    rotation.values = HadamardRotation(segment.dims);
    Matrix down(segment.dims, factors->down.cols), up(factors->up.rows, segment.dims);
    for (int r = 0; r < down.rows; ++r) {
      for (int c = 0; c < down.cols; ++c) down.at(r, c) = factors->down.at(begin + r, c);
    }
    for (int r = 0; r < up.rows; ++r) {
      for (int c = 0; c < up.cols; ++c) up.at(r, c) = factors->up.at(r, begin + c);
    }
    down = Multiply(rotation, down);
    up = Multiply(up, Transpose::kNo, rotation, Transpose::kYes);
    for (int r = 0; r < down.rows; ++r) {
      for (int c = 0; c < down.cols; ++c) factors->down.at(begin + r, c) = down.at(r, c);
    }
    for (int r = 0; r < up.rows; ++r) {
      for (int c = 0; c < up.cols; ++c) factors->up.at(r, begin + c) = up.at(r, c);
    }
    begin += segment.dims;
  }
}

TensorView PlaneFactors::DownView(int64_t hidden_dim) const {
  return ViewOf(down, dtype, hidden_dim);
}

TensorView PlaneFactors::UpView() const { return ViewOf(up, dtype, plane.dims()); }

double PlaneFactors::EnergyKept() const {
  const double kept = std::accumulate(energy.begin(), energy.begin() + plane.dims(), 0.0);
  const double all = std::accumulate(energy.begin(), energy.end(), 0.0);
  return all > 0 ? kept / all : 1;
}

LatentLayer LayerFactors::View(const ModelConfig& config) const {
  return {.cache = {.k = k.plane,
                    .v = v.plane,
                    .sinks = sinks,
                    .sink_dims = sinks > 0 ? config.kv_dim() : 0,
                    .own_page = own_page,
                    .key_norms = config.qk_norm ? config.num_kv_heads : 0},
          .k_down = k.DownView(config.hidden_dim),
          .k_up = k.UpView(),
          .v_down = v.DownView(config.hidden_dim),
          .v_up = v.UpView(),
          .k_mean = RowView(k.mean),
          .k_offset = RowView(k.offset),
          .v_mean = RowView(v.mean),
          .v_offset = RowView(v.offset)};
}

void AppendFactors(const Factors& factors, const Matrix& weight, PlaneFactors* plane) {
  AppendNumbers(Multiply(factors.down, weight), plane->dtype, &plane->down);
  AppendNumbers(factors.up, plane->dtype, &plane->up);
}

absl::StatusOr<Matrix> ProjectionRows(const Checkpoint& checkpoint, int layer,
                                      const char* projection, int begin, int count) {
  const std::string name = absl::StrCat("layers.", layer, ".", projection, ".weight");
  const std::optional<TensorView> view = checkpoint.Find(name);
  if (!view.has_value()) {
    return absl::NotFoundError(absl::StrCat("the model has no tensor ", name));
  }
  Matrix out(count, static_cast<int>(view->cols));
  std::vector<float> row(view->cols);
  for (int r = 0; r < count; ++r) {
    DequantizeRow(*view, begin + r, absl::MakeSpan(row));
    std::copy(row.begin(), row.end(), out.values.begin() + int64_t{r} * view->cols);
  }
  return out;
}

Matrix DiagonalBlock(const Matrix& square, int begin, int count) {
  Matrix out(count, count);
  for (int r = 0; r < count; ++r) {
    for (int c = 0; c < count; ++c) out.at(r, c) = square.at(begin + r, begin + c);
  }
  return out;
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
  if (group < 1 || num_kv_heads % group != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--group is ", group, ", it must divide the model's KV heads, which are ", num_kv_heads));
  }
  return group;
}

std::string DescribeGroups(int heads_per_group, int num_kv_heads) {
  if (heads_per_group == num_kv_heads) return "groups of all KV heads";
  return absl::StrCat("groups of ", heads_per_group, " KV heads");
}

}  // namespace latentd
