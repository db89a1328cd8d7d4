#include "kernels/codec.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/check.h"
#include "kernels/dtype.h"

namespace latentd {
namespace {

// Every sum over a row runs in 16 partial sums, value i in sum i % 16, which are folded in halves.
// So the result is one defined number for every vector width. GCC's and Clang's vector types make
// the loops vectors on any target.
constexpr int kLanes = 16;
constexpr int kQuads = kLanes / 4;
using Quad = float __attribute__((vector_size(16)));
using IntQuad = int32_t __attribute__((vector_size(16)));
using Lanes = std::array<Quad, kQuads>;

constexpr float kMaxHalf = 65504.0f;
constexpr uint16_t kHalfNan = 0x7e00;

Quad Splat(float value) { return Quad{value, value, value, value}; }

Quad Load(const float* p) {
  Quad q;
  std::memcpy(&q, p, sizeof(q));
  return q;
}

Quad Min(Quad a, Quad b) { return a < b ? a : b; }
Quad Max(Quad a, Quad b) { return a > b ? a : b; }

float FoldSum(const Lanes& lanes) {
  const Quad four = (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
  return (four[0] + four[2]) + (four[1] + four[3]);
}

float FoldMax(const Lanes& lanes) {
  const Quad four = Max(Max(lanes[0], lanes[1]), Max(lanes[2], lanes[3]));
  return std::max(std::max(four[0], four[1]), std::max(four[2], four[3]));
}

float FoldMin(const Lanes& lanes) {
  const Quad four = Min(Min(lanes[0], lanes[1]), Min(lanes[2], lanes[3]));
  return std::min(std::min(four[0], four[1]), std::min(four[2], four[3]));
}

struct RowFacts {
  bool finite;
  float sum_squares;
  float abs_max;
  float min;
  float max;
};

RowFacts Measure(absl::Span<const float> row) {
  Lanes zeros{}, squares{}, low, high;
  for (int k = 0; k < kQuads; ++k) low[k] = high[k] = Load(row.data() + 4 * k);
  for (size_t i = 0; i < row.size(); i += kLanes) {
    for (int k = 0; k < kQuads; ++k) {
      const Quad x = Load(row.data() + i + 4 * k);
      zeros[k] += x - x;  // NaN for infinities and NaN, else 0
      squares[k] += x * x;
      low[k] = Min(low[k], x);
      high[k] = Max(high[k], x);
    }
  }
  const float min = FoldMin(low), max = FoldMax(high);
  return {.finite = FoldSum(zeros) == 0.0f,
          .sum_squares = FoldSum(squares),
          .abs_max = std::max(max, -min),
          .min = min,
          .max = max};
}

// A positive number as fp16 stores it, saturated at the largest finite half.
float AsHalf(float value) { return HalfToFloat(FloatToHalf(value <= kMaxHalf ? value : kMaxHalf)); }

// ---- The symmetric mid-rise grid
// ------------------------------------------------------------------------------------

// The grid in units of its scale: codes 0 .. top stand for code - top / 2. A value x takes the code
// of floor(x * (1 / scale)), clamped; scale 0 puts everything on the middle code.
struct Grid {
  explicit Grid(int bits)
      : middle(static_cast<float>(1 << (bits - 1))),
        top(static_cast<float>((1 << bits) - 1)),
        half_top(top * 0.5f) {}

  IntQuad CodesOf(Quad x, Quad inverse) const {
    const Quad shifted = x * inverse + Splat(middle);
    return __builtin_convertvector(Min(Max(shifted, Quad{}), Splat(top)), IntQuad);
  }
  Quad GridValueOf(Quad x, Quad inverse) const {
    return __builtin_convertvector(CodesOf(x, inverse), Quad) - Splat(half_top);
  }

  float middle, top, half_top;
};

float Inverse(float scale) { return scale > 0.0f ? std::min(1.0f / scale, 3e38f) : 0.0f; }

// The scale that fits best, in the least squares sense, to the codes that `scale` gives.
float LeastSquaresStep(const Grid& grid, absl::Span<const float> row, float scale) {
  const Quad inverse = Splat(Inverse(scale));
  Lanes products{}, squares{};
  for (size_t i = 0; i < row.size(); i += kLanes) {
    for (int k = 0; k < kQuads; ++k) {
      const Quad x = Load(row.data() + i + 4 * k);
      const Quad g = grid.GridValueOf(x, inverse);
      products[k] += x * g;
      squares[k] += g * g;
    }
  }
  return FoldSum(products) / FoldSum(squares);  // every |g| is at least 1/2
}

float SquaredError(const Grid& grid, absl::Span<const float> row, float scale) {
  const Quad inverse = Splat(Inverse(scale)), step = Splat(scale);
  Lanes errors{};
  for (size_t i = 0; i < row.size(); i += kLanes) {
    for (int k = 0; k < kQuads; ++k) {
      const Quad x = Load(row.data() + i + 4 * k);
      const Quad e = x - step * grid.GridValueOf(x, inverse);
      errors[k] += e * e;
    }
  }
  return FoldSum(errors);
}

// Step of the best uniform quantiser of a unit Gaussian (Max 1960).
float GaussianStep(int bits) {
  switch (bits) {
    case 2:
      return 0.9957f;
    case 3:
      return 0.5860f;
    case 4:
      return 0.3352f;
    default:
      return 0.0308f;
  }
}

CodeScale EncodeSymmetric(int bits, const RowFacts& facts, absl::Span<const float> row,
                          absl::Span<uint8_t> codes) {
  const Grid grid(bits);
  const float rms = __builtin_sqrtf(facts.sum_squares / static_cast<float>(row.size()));
  float best_scale = 0.0f, best_error = facts.sum_squares;
  for (const float start : {rms * GaussianStep(bits), facts.abs_max / grid.half_top}) {
    float scale = AsHalf(start);
    for (int step = 0; step < 2; ++step) scale = AsHalf(LeastSquaresStep(grid, row, scale));
    const float error = SquaredError(grid, row, scale);
    if (error < best_error) {
      best_error = error;
      best_scale = scale;
    }
  }
  const Quad inverse = Splat(Inverse(best_scale));
  for (size_t i = 0; i < row.size(); i += 4) {
    const IntQuad code = grid.CodesOf(Load(row.data() + i), inverse);
    for (int k = 0; k < 4; ++k) codes[i + k] = static_cast<uint8_t>(code[k]);
  }
  return {.scale = FloatToHalf(best_scale)};
}

// ---- Min-max
// --------------------------------------------------------------------------------------------------------

CodeScale EncodeMinMax(int bits, const RowFacts& facts, absl::Span<const float> row,
                       absl::Span<uint8_t> codes) {
  const float top = static_cast<float>((1 << bits) - 1);
  const float zero = HalfToFloat(FloatToHalf(std::clamp(facts.min, -kMaxHalf, kMaxHalf)));
  const float scale = AsHalf((facts.max - facts.min) / top);
  const Quad inverse = Splat(Inverse(scale));
  for (size_t i = 0; i < row.size(); i += 4) {
    const Quad rounded = (Load(row.data() + i) - Splat(zero)) * inverse + Splat(0.5f);
    const IntQuad code = __builtin_convertvector(Min(Max(rounded, Quad{}), Splat(top)), IntQuad);
    for (int k = 0; k < 4; ++k) codes[i + k] = static_cast<uint8_t>(code[k]);
  }
  return {.scale = FloatToHalf(scale), .zero = FloatToHalf(zero)};
}

bool IsMinMax(Codec codec) { return Info(codec).scale_bytes == 4; }

}  // namespace

const CodecInfo& Info(Codec codec) {
  static constexpr CodecInfo kInfo[] = {
      {"f32", 32, 0}, {"f16", 16, 0},    {"int8", 8, 2},    {"int4", 4, 2},    {"int3", 3, 2},
      {"int2", 2, 2}, {"minmax4", 4, 4}, {"minmax3", 3, 4}, {"minmax2", 2, 4},
  };
  return kInfo[static_cast<int>(codec)];
}

std::optional<Codec> ParseCodec(std::string_view name) {
  for (int i = 0; i <= static_cast<int>(Codec::kMinMax2); ++i) {
    if (name == Info(static_cast<Codec>(i)).name) return static_cast<Codec>(i);
  }
  return std::nullopt;
}

CodeScale EncodeRow(Codec codec, absl::Span<const float> values, absl::Span<uint8_t> codes) {
  const CodecInfo& info = Info(codec);
  LATENTD_CHECK(info.scale_bytes > 0 && values.size() == codes.size());
  LATENTD_CHECK(!values.empty() && values.size() % kLanes == 0);
  const RowFacts facts = Measure(values);
  if (!facts.finite) {
    std::memset(codes.data(), 0, codes.size());
    return {.scale = kHalfNan, .zero = IsMinMax(codec) ? kHalfNan : uint16_t{0}};
  }
  return IsMinMax(codec) ? EncodeMinMax(info.bits, facts, values, codes)
                         : EncodeSymmetric(info.bits, facts, values, codes);
}

float DecodeScale(Codec codec, CodeScale scale) { return HalfToFloat(scale.scale); }

float DecodeOffset(Codec codec, CodeScale scale) {
  if (IsMinMax(codec)) return HalfToFloat(scale.zero);
  const float half_top = static_cast<float>((1 << Info(codec).bits) - 1) * 0.5f;
  return -half_top * HalfToFloat(scale.scale);
}

}  // namespace latentd
