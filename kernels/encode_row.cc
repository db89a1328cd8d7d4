// EncodeRow with vectors. The symmetric grid takes six passes over a row that lies in L1, about 85
// operations a value, so arithmetic and, in short rows, the latency of the folds bound it.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

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
          // Of zeros of both signs, whichever a machine takes for the smaller, 0.
          .min = hn::GetLane(hn::MinOfLanes(kFloats, low)) + 0.0f,
          .max = hn::GetLane(hn::MaxOfLanes(kFloats, high)) + 0.0f};
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

// A scale, and how much of the row's energy it keeps: the least squares fit of x = scale * g to the
// codes g of some first scale has scale = (x . g) / (g . g), and leaves the squared error
// |x|^2 - (x . g)^2 / (g . g).
struct Fit {
  float scale;
  float kept;
};

// The fits to the codes of `N` scales, whose sums run side by side.
template <size_t N>
HWY_INLINE void LeastSquares(const Grid& grid, const float* row, size_t size, const float* from,
                             Fit* fits) {
  Vec inverse[N];
  Partials products[N], squares[N];
  for (size_t c = 0; c < N; ++c) {
    inverse[c] = hn::Set(kFloats, Inverse(from[c]));
    products[c].Clear();
    squares[c].Clear();
  }
  for (size_t i = 0; i < size; i += kPartialSums) {
    for (size_t p = 0; p < kParts; ++p) {
      const Vec x = hn::LoadU(kFloats, row + i + p * kWidth);
      for (size_t c = 0; c < N; ++c) {
        const Vec g = grid.GridValueOf(x, inverse[c]);
        products[c].parts[p] = hn::Add(products[c].parts[p], hn::Mul(x, g));
        squares[c].parts[p] = hn::Add(squares[c].parts[p], hn::Mul(g, g));
      }
    }
  }
  for (size_t c = 0; c < N; ++c) {
    const float product = products[c].Sum();
    const float scale = product / squares[c].Sum();  // every |g| is at least 1/2
    fits[c] = {.scale = AsHalf(scale), .kept = product * scale};
  }
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
  // The codes nearest to the row's direction are those of the least squared error, which has
  // several minima; these starts find one within 1 % of the lowest in rows of 32 or more Gaussian
  // values.
  const float full = abs_max / half_top, best = rms * GaussianStep(bits);
  const float starts[] = {full, 0.92f * full, 0.84f * full, 0.76f * full, best, 0.88f * best};
  Fit fits[std::size(starts)];
  for (size_t i = 0; i < std::size(starts); i += 2) {
    LeastSquares<2>(grid, row, size, starts + i, fits + i);
  }
  Fit fit = *std::max_element(std::begin(fits), std::end(fits),
                              [](const Fit& a, const Fit& b) { return a.kept < b.kept; });
  LeastSquares<1>(grid, row, size, &fit.scale, &fit);
  const Vec inverse = hn::Set(kFloats, Inverse(fit.scale));
  Partials products;
  products.Clear();
  for (size_t i = 0; i < size; i += kPartialSums) {
    for (size_t p = 0; p < kParts; ++p) {
      const size_t at = i + p * kWidth;
      const Vec x = hn::LoadU(kFloats, row + at), code = grid.CodeOf(x, inverse);
      StoreCodes(code, codes + at);
      products.parts[p] = hn::Add(products.parts[p], hn::Mul(x, hn::Sub(code, grid.half_top)));
    }
  }
  // Above 0 where the fitted scale is: x and g differ in sign only where x / scale is lost beside
  // the middle code, and the largest |x| is a quarter of the scale or more.
  const float unbiased = fit.scale > 0.0f ? facts.sum_squares / products.Sum() : 0.0f;
  return {.scale = FloatToHalf(unbiased <= kMaxHalf ? unbiased : kMaxHalf)};
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
