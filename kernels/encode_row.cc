// EncodeRow with vectors. The symmetric grid takes five passes over a row that lies in L1, about 40
// operations a value, so arithmetic and, in short rows, the latency of the folds bound it: 1.7 ns a
// value measured with AVX-512 at 128 values.

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/codec.h"
#include "kernels/dtype.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/encode_row.cc"
#include "hwy/foreach_target.h"  // re-includes this file once per target
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace latentd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Every sum over a row runs in 16 partial sums, value i in sum i % 16, which are folded in halves.
// So the result is one defined number for every vector width.
constexpr size_t kPartialSums = 16;
using Floats = hn::CappedTag<float, kPartialSums>;
using Vec = hn::Vec<Floats>;
constexpr Floats kFloats;
constexpr size_t kWidth = hn::MaxLanes(kFloats);
constexpr size_t kParts = kPartialSums / kWidth;

constexpr float kMaxHalf = 65504.0f;
constexpr uint16_t kHalfNan = 0x7e00;

// One running value per partial sum.
struct Partials {
  HWY_INLINE void Clear() {
    for (Vec& part : parts) part = hn::Zero(kFloats);
  }
  HWY_INLINE float Sum() const {
    HWY_ALIGN float lanes[kPartialSums];
    for (size_t p = 0; p < kParts; ++p) hn::Store(parts[p], kFloats, lanes + p * kWidth);
    const hn::CappedTag<float, 4> four;
    for (size_t i = 0; i < 4; i += hn::MaxLanes(four)) {
      const auto even = hn::Add(hn::Load(four, lanes + i), hn::Load(four, lanes + 8 + i));
      const auto odd = hn::Add(hn::Load(four, lanes + 4 + i), hn::Load(four, lanes + 12 + i));
      hn::Store(hn::Add(even, odd), four, lanes + i);
    }
    return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
  }
  Vec parts[kParts];
};

struct RowFacts {
  bool finite;
  float sum_squares;
  float min;
  float max;
};

HWY_INLINE RowFacts Measure(const float* row, size_t size) {
  Partials zeros, squares;
  zeros.Clear();
  squares.Clear();
  Vec low = hn::Set(kFloats, row[0]), high = low;
  for (size_t i = 0; i < size; i += kPartialSums) {
    for (size_t p = 0; p < kParts; ++p) {
      const Vec x = hn::LoadU(kFloats, row + i + p * kWidth);
      zeros.parts[p] =
          hn::Add(zeros.parts[p], hn::Sub(x, x));  // NaN for infinities and NaN, else 0
      squares.parts[p] = hn::Add(squares.parts[p], hn::Mul(x, x));
      low = hn::Min(low, x);
      high = hn::Max(high, x);
    }
  }
  return {.finite = zeros.Sum() == 0.0f,
          .sum_squares = squares.Sum(),
          .min = hn::GetLane(hn::MinOfLanes(kFloats, low)),
          .max = hn::GetLane(hn::MaxOfLanes(kFloats, high))};
}

// A number >= 0 as fp16 stores it, saturated at the largest finite half.
float AsHalf(float value) { return HalfToFloat(FloatToHalf(value <= kMaxHalf ? value : kMaxHalf)); }

// Below the smallest normal half's reach 1 / scale stays finite, and 0 puts every value on the
// middle code.
float Inverse(float scale) { return scale > 0.0f ? 1.0f / scale : 0.0f; }

// ---- The symmetric mid-rise grid ----

// The grid in units of its scale: codes 0 .. top stand for code - top / 2. A value x takes the code
// clamp(floor(x * (1 / scale) + middle), 0, top).
struct Grid {
  explicit Grid(int bits)
      : middle(hn::Set(kFloats, static_cast<float>(1 << (bits - 1)))),
        top(hn::Set(kFloats, static_cast<float>((1 << bits) - 1))),
        half_top(hn::Set(kFloats, static_cast<float>((1 << bits) - 1) * 0.5f)) {}

  HWY_INLINE Vec CodeOf(Vec x, Vec inverse) const {
    const Vec shifted = hn::Add(hn::Mul(x, inverse), middle);
    return hn::Floor(hn::Min(hn::Max(shifted, hn::Zero(kFloats)), top));
  }
  HWY_INLINE Vec GridValueOf(Vec x, Vec inverse) const {
    return hn::Sub(CodeOf(x, inverse), half_top);
  }

  const Vec middle, top, half_top;
};

// The two candidates of a row, whose passes run side by side.
struct Scales {
  float scale[2];
};

// For each candidate the scale that fits best, in the least squares sense, to the codes that it
// gives.
HWY_INLINE Scales LeastSquaresStep(const Grid& grid, const float* row, size_t size, Scales from) {
  const Vec inverse[2] = {hn::Set(kFloats, Inverse(from.scale[0])),
                          hn::Set(kFloats, Inverse(from.scale[1]))};
  Partials products[2], squares[2];
  for (int c = 0; c < 2; ++c) {
    products[c].Clear();
    squares[c].Clear();
  }
  for (size_t i = 0; i < size; i += kPartialSums) {
    for (size_t p = 0; p < kParts; ++p) {
      const Vec x = hn::LoadU(kFloats, row + i + p * kWidth);
      for (int c = 0; c < 2; ++c) {
        const Vec g = grid.GridValueOf(x, inverse[c]);
        products[c].parts[p] = hn::Add(products[c].parts[p], hn::Mul(x, g));
        squares[c].parts[p] = hn::Add(squares[c].parts[p], hn::Mul(g, g));
      }
    }
  }
  return {AsHalf(products[0].Sum() / squares[0].Sum()),  // every |g| is at least 1/2
          AsHalf(products[1].Sum() / squares[1].Sum())};
}

// The candidate with the smaller squared error.
HWY_INLINE float Better(const Grid& grid, const float* row, size_t size, Scales candidates) {
  Partials errors[2];
  Vec scale[2], inverse[2];
  for (int c = 0; c < 2; ++c) {
    errors[c].Clear();
    scale[c] = hn::Set(kFloats, candidates.scale[c]);
    inverse[c] = hn::Set(kFloats, Inverse(candidates.scale[c]));
  }
  for (size_t i = 0; i < size; i += kPartialSums) {
    for (size_t p = 0; p < kParts; ++p) {
      const Vec x = hn::LoadU(kFloats, row + i + p * kWidth);
      for (int c = 0; c < 2; ++c) {
        const Vec e = hn::Sub(x, hn::Mul(scale[c], grid.GridValueOf(x, inverse[c])));
        errors[c].parts[p] = hn::Add(errors[c].parts[p], hn::Mul(e, e));
      }
    }
  }
  return errors[1].Sum() < errors[0].Sum() ? candidates.scale[1] : candidates.scale[0];
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

HWY_INLINE void StoreCodes(Vec codes, uint8_t* to) {
  const hn::Rebind<int32_t, Floats> words;
  const hn::Rebind<uint8_t, Floats> bytes;
  hn::StoreU(hn::DemoteTo(bytes, hn::ConvertTo(words, codes)), bytes, to);
}

HWY_INLINE CodeScale EncodeSymmetric(int bits, const RowFacts& facts, const float* row, size_t size,
                                     uint8_t* codes) {
  const Grid grid(bits);
  const float half_top = static_cast<float>((1 << bits) - 1) * 0.5f;
  const float rms = std::sqrt(facts.sum_squares / static_cast<float>(size));
  const float abs_max = std::max(facts.max, -facts.min);
  Scales scales = {AsHalf(rms * GaussianStep(bits)), AsHalf(abs_max / half_top)};
  for (int step = 0; step < 2; ++step) scales = LeastSquaresStep(grid, row, size, scales);
  const float scale = Better(grid, row, size, scales);
  const Vec inverse = hn::Set(kFloats, Inverse(scale));
  for (size_t i = 0; i < size; i += kWidth) {
    StoreCodes(grid.CodeOf(hn::LoadU(kFloats, row + i), inverse), codes + i);
  }
  return {.scale = FloatToHalf(scale)};
}

// ---- Min-max ----

HWY_INLINE CodeScale EncodeMinMax(int bits, const RowFacts& facts, const float* row, size_t size,
                                  uint8_t* codes) {
  const float top = static_cast<float>((1 << bits) - 1);
  const uint16_t zero = FloatToHalf(std::clamp(facts.min, -kMaxHalf, kMaxHalf));
  const float scale = AsHalf((facts.max - facts.min) / top);
  const Vec inverse = hn::Set(kFloats, Inverse(scale)),
            minimum = hn::Set(kFloats, HalfToFloat(zero));
  const Vec half = hn::Set(kFloats, 0.5f), most = hn::Set(kFloats, top);
  for (size_t i = 0; i < size; i += kWidth) {
    const Vec x = hn::LoadU(kFloats, row + i);
    const Vec rounded = hn::Floor(hn::Add(hn::Mul(hn::Sub(x, minimum), inverse), half));
    StoreCodes(hn::Min(hn::Max(rounded, hn::Zero(kFloats)), most), codes + i);
  }
  return {.scale = FloatToHalf(scale), .zero = zero};
}

CodeScale EncodeRowWithVectors(int bits, bool min_max, const float* row, size_t size,
                               uint8_t* codes) {
  const RowFacts facts = Measure(row, size);
  if (!facts.finite) {
    std::memset(codes, 0, size);
    return {.scale = kHalfNan, .zero = min_max ? kHalfNan : uint16_t{0}};
  }
  return min_max ? EncodeMinMax(bits, facts, row, size, codes)
                 : EncodeSymmetric(bits, facts, row, size, codes);
}

}  // namespace HWY_NAMESPACE
}  // namespace latentd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace latentd {

HWY_EXPORT(EncodeRowWithVectors);

CodeScale EncodeRow(Codec codec, absl::Span<const float> values, absl::Span<uint8_t> codes) {
  const CodecInfo& info = Info(codec);
  LATENTD_CHECK(info.scale_bytes > 0 && values.size() == codes.size());
  LATENTD_CHECK(!values.empty() && values.size() % 16 == 0);
  return HWY_DYNAMIC_DISPATCH(EncodeRowWithVectors)(info.bits, info.scale_bytes == 4, values.data(),
                                                    values.size(), codes.data());
}

}  // namespace latentd
#endif
