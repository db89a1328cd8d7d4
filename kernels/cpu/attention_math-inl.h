// The arithmetic of attention on one block: products of a few rows with a tile, the softmax state,
// sums of values. Every result depends on its own row alone, in an order that the number of rows
// does not change.

#include <cstdint>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/cache_tile-inl.h"

// Per-target include guard, as Highway's own -inl.h files have.
#if defined(LATENTD_KERNELS_CPU_ATTENTION_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LATENTD_KERNELS_CPU_ATTENTION_MATH_INL_H_
#undef LATENTD_KERNELS_CPU_ATTENTION_MATH_INL_H_
#else
#define LATENTD_KERNELS_CPU_ATTENTION_MATH_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace latentd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Rows that are multiplied together: their accumulators (4 vectors each) fill the registers.
inline constexpr int kMaxRows = kLanes == 16 ? 6 : 2;
// Partial sums of a softmax denominator, for every vector width.
inline constexpr int kSumLanes = 16;

// How many of `rows` rows the next pass takes: one of 6, 4, 3, 2, 1.
inline int RowsInPass(int rows) {
  if (rows > 8 || rows == 6) return HWY_MIN(6, kMaxRows);
  if (rows > 3 && rows != 5) return HWY_MIN(4, kMaxRows);
  return HWY_MIN(HWY_MIN(3, rows), kMaxRows);
}

// While a tile of 16-bit values is read, the one that comes next is fetched: blocks lie anywhere in
// memory, where the processor does not foresee them. `ahead` is the distance in bytes. fp32 tiles
// lie in a cache already.
HWY_INLINE void FetchAhead(const float*, int, int64_t) {}
HWY_INLINE void FetchAhead(const hwy::float16_t* now, int values, int64_t ahead) {
  constexpr int kLineValues = 32;
  const auto* line =
      reinterpret_cast<const hwy::float16_t*>(reinterpret_cast<const uint8_t*>(now) + ahead);
  for (int i = 0; i < values; i += kLineValues) __builtin_prefetch(line + i, 0, 2);
}

// ---- out[i][t] (+)= sum over d of a[i][d] * tile[d][t] ----

template <int kRows, typename T>
HWY_INLINE void MultiplyPass(const float* a, int64_t a_stride, const T* tile, int dims,
                             bool accumulate, int64_t ahead, float* out) {
  constexpr int kVectors = 4;
  const DF df;
  for (int first = 0; first < kBlockTokens; first += kVectors * kLanes) {
    VF sums[kRows][kVectors];
    for (int i = 0; i < kRows; ++i) {
      for (int v = 0; v < kVectors; ++v) {
        sums[i][v] =
            accumulate ? hn::Load(df, out + i * kBlockTokens + first + v * kLanes) : hn::Zero(df);
      }
    }
    for (int d = 0; d < dims; ++d) {
      FetchAhead(tile + d * kBlockTokens + first, kVectors * kLanes, ahead);
      VF column[kVectors];
      for (int v = 0; v < kVectors; ++v) {
        column[v] = LoadValues(tile + d * kBlockTokens + first + v * kLanes);
      }
      for (int i = 0; i < kRows; ++i) {
        const VF factor = hn::Set(df, a[i * a_stride + d]);
        for (int v = 0; v < kVectors; ++v) sums[i][v] = hn::MulAdd(factor, column[v], sums[i][v]);
      }
    }
    for (int i = 0; i < kRows; ++i) {
      for (int v = 0; v < kVectors; ++v) {
        hn::Store(sums[i][v], df, out + i * kBlockTokens + first + v * kLanes);
      }
    }
  }
}

// `ahead`: as FetchAhead takes it.
template <typename T>
inline void MultiplyRows(const float* a, int64_t a_stride, int rows, const T* tile, int dims,
                         bool accumulate, int64_t ahead, float* out) {
  while (rows > 0) {
    const int pass = RowsInPass(rows);
    if constexpr (kMaxRows >= 6) {
      if (pass == 6) MultiplyPass<6>(a, a_stride, tile, dims, accumulate, ahead, out);
      if (pass == 4) MultiplyPass<4>(a, a_stride, tile, dims, accumulate, ahead, out);
      if (pass == 3) MultiplyPass<3>(a, a_stride, tile, dims, accumulate, ahead, out);
    }
    if (pass == 2) MultiplyPass<2>(a, a_stride, tile, dims, accumulate, ahead, out);
    if (pass == 1) MultiplyPass<1>(a, a_stride, tile, dims, accumulate, ahead, out);
    rows -= pass;
    a += pass * a_stride;
    out += pass * kBlockTokens;
  }
}

template <int kVectors>
HWY_INLINE void MultiplyColumns(const float* x, int rows, const float* matrix, int cols, int first,
                                float* out) {
  const DF df;
  VF sums[kVectors];
  for (VF& sum : sums) sum = hn::Zero(df);
  for (int r = 0; r < rows; ++r) {
    const float* row = matrix + static_cast<int64_t>(r) * cols + first;
    const VF factor = hn::Set(df, x[r]);
    for (int v = 0; v < kVectors; ++v) {
      sums[v] = hn::MulAdd(factor, hn::LoadU(df, row + v * kLanes), sums[v]);
    }
  }
  for (int v = 0; v < kVectors; ++v) hn::StoreU(sums[v], df, out + first + v * kLanes);
}

// out[c] = sum over r of x[r] * matrix[r][c]; cols a multiple of 16.
inline void MultiplyMatrix(const float* x, int rows, const float* matrix, int cols, float* out) {
  int c = 0;
  for (; c + 8 * kLanes <= cols; c += 8 * kLanes) {
    MultiplyColumns<8>(x, rows, matrix, cols, c, out);
  }
  for (; c + 4 * kLanes <= cols; c += 4 * kLanes) {
    MultiplyColumns<4>(x, rows, matrix, cols, c, out);
  }
  for (; c < cols; c += kLanes) MultiplyColumns<1>(x, rows, matrix, cols, c, out);
}

// ---- Softmax ----

// 2^x for x <= 0, relative error 2e-7; 0 below -125. NaN stays NaN.
HWY_INLINE VF Exp2(VF x) {
  const DF df;
  // So large that its last bit is worth 1: x is rounded to a whole number n, whose 127 + n stand in
  // the low bits.
  const VF rounder = hn::Set(df, 12582912.0f + 127.0f);
  const VF rounded = hn::Add(x, rounder);
  const VF f = hn::Sub(x, hn::Sub(rounded, rounder));
  const VF power = hn::BitCast(df, hn::ShiftLeft<23>(hn::BitCast(DI(), rounded)));
  VF y = hn::Set(df, 1.5403530393e-4f);
  y = hn::MulAdd(y, f, hn::Set(df, 1.3333558146e-3f));
  y = hn::MulAdd(y, f, hn::Set(df, 9.6181291076e-3f));
  y = hn::MulAdd(y, f, hn::Set(df, 5.5504108665e-2f));
  y = hn::MulAdd(y, f, hn::Set(df, 2.4022650696e-1f));
  y = hn::MulAdd(y, f, hn::Set(df, 6.9314718056e-1f));
  y = hn::MulAdd(y, f, hn::Set(df, 1.0f));
  return hn::IfThenZeroElse(hn::Lt(x, hn::Set(df, -125.0f)), hn::Mul(y, power));
}

HWY_INLINE float Exp2(float x) { return hn::GetLane(Exp2(hn::Set(DF(), x))); }

// The tokens of a block that a row sees: [begin, end), never empty.
struct TokenRange {
  int begin = 0;
  int end = 0;
};

// scores[t] = scores[t] * factors[t] of 64 tokens.
HWY_INLINE void ScaleScores(const float* factors, float* scores) {
  const DF df;
  for (int t = 0; t < kBlockTokens; t += kLanes) {
    hn::Store(hn::Mul(hn::Load(df, scores + t), hn::Load(df, factors + t)), df, scores + t);
  }
}

// scores[t] += slope * (first + t), `first` being token 0's position less the row's.
HWY_INLINE void AddSlope(float slope, int first, float* scores) {
  const DF df;
  for (int t = 0; t < kBlockTokens; t += kLanes) {
    const VF distance = hn::Iota(df, static_cast<float>(first + t));
    hn::Store(hn::MulAdd(hn::Set(df, slope), distance, hn::Load(df, scores + t)), df, scores + t);
  }
}

// Scores (exponents of 2) of one query and the tokens of a block become weights, 0 for those that
// the row does not see. Updates the largest score and the sums of weights; returns what the earlier
// weights must be multiplied with.
HWY_INLINE float UpdateSoftmax(float* scores, TokenRange seen, float* largest, float* sums) {
  const DF df;
  VF s[kTokenVectors];
  VF top = hn::Set(df, -HUGE_VALF);
  for (int v = 0; v < kTokenVectors; ++v) {
    s[v] = hn::Load(df, scores + v * kLanes);
    if (seen.begin > v * kLanes || seen.end < (v + 1) * kLanes) {
      const auto before = hn::FirstN(df, HWY_MAX(0, seen.begin - v * kLanes));
      const auto until = hn::FirstN(df, HWY_MAX(0, seen.end - v * kLanes));
      s[v] = hn::IfThenElse(hn::AndNot(before, until), s[v], hn::Set(df, -HUGE_VALF));
    }
    top = hn::Max(top, s[v]);
  }
  const float before = *largest;
  const float now = HWY_MAX(before, hn::GetLane(hn::MaxOfLanes(df, top)));
  const float decay = now == before ? 1.0f : Exp2(before - now);
  const VF now_lanes = hn::Set(df, now);
  const VF decay_lanes = hn::Set(df, decay);
  for (int i = 0; i < kSumLanes; i += kLanes) {
    VF sum = hn::Mul(decay_lanes, hn::Load(df, sums + i));
    for (int v = i / kLanes; v < kTokenVectors; v += kSumLanes / kLanes) {
      const VF weight = Exp2(hn::Sub(s[v], now_lanes));
      hn::Store(weight, df, scores + v * kLanes);
      sum = hn::Add(sum, weight);
    }
    hn::Store(sum, df, sums + i);
  }
  *largest = now;
  return decay;
}

// ---- out[i][d] = decay[i] * out[i][d] + sum over t of weights[i][t] * values[t][d] ----

// values [dims / 16][64 tokens][16 dims]; vectors [first, first + kVectors) of the dims.
template <int kRows, int kVectors, typename T>
HWY_INLINE void AddValuesPass(const float* weights, const float* decay, int begin, int end,
                              const T* values, int first, int64_t ahead, int64_t out_stride,
                              float* out) {
  const DF df;
  constexpr int kPerTile = kTileDims / kLanes;
  VF sums[kRows][kVectors];
  for (int i = 0; i < kRows; ++i) {
    const VF factor = hn::Set(df, decay[i]);
    for (int v = 0; v < kVectors; ++v) {
      sums[i][v] = hn::Mul(factor, hn::Load(df, out + i * out_stride + (first + v) * kLanes));
    }
  }
  const T* columns[kVectors];
  for (int v = 0; v < kVectors; ++v) {
    columns[v] = values + (first + v) / kPerTile * kTileValues + (first + v) % kPerTile * kLanes;
  }
  for (int t = begin; t < end; ++t) {
    if (t % 2 == 0) {  // a cache line holds two tokens of a 16-bit tile
      for (int v = 0; v < kVectors; ++v) FetchAhead(columns[v] + t * kTileDims, 1, ahead);
    }
    VF row[kVectors];
    for (int v = 0; v < kVectors; ++v) row[v] = LoadValues(columns[v] + t * kTileDims);
    for (int i = 0; i < kRows; ++i) {
      const VF weight = hn::Set(df, weights[i * kBlockTokens + t]);
      for (int v = 0; v < kVectors; ++v) sums[i][v] = hn::MulAdd(weight, row[v], sums[i][v]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      hn::Store(sums[i][v], df, out + i * out_stride + (first + v) * kLanes);
    }
  }
}

template <int kRows, typename T>
HWY_INLINE void AddValuesRows(const float* weights, const float* decay, int begin, int end,
                              const T* values, int dims, int64_t ahead, int64_t out_stride,
                              float* out) {
  const int vectors = dims / kLanes;
  int v = 0;
  for (; v + 4 <= vectors; v += 4) {
    AddValuesPass<kRows, 4>(weights, decay, begin, end, values, v, ahead, out_stride, out);
  }
  if (v + 2 <= vectors) {
    AddValuesPass<kRows, 2>(weights, decay, begin, end, values, v, ahead, out_stride, out);
    v += 2;
  }
  if (v < vectors) {
    AddValuesPass<kRows, 1>(weights, decay, begin, end, values, v, ahead, out_stride, out);
  }
}

// Row i sees the tokens seen[i], whose two ends never decrease with i: a row's sum takes no part of
// the tokens that it may not see. It adds them in their order, whatever the other rows see.
template <typename T>
inline void AddValues(const float* weights, const float* decay, const TokenRange* seen, int rows,
                      const T* values, int dims, int64_t ahead, float* out) {
  while (rows > 0) {
    const int pass = RowsInPass(rows);
    // What all rows of the pass see, and what single rows see before and after it.
    const int begin = seen[pass - 1].begin, end = HWY_MAX(begin, seen[0].end);
    constexpr float kKeep = 1.0f;
    float factors[kMaxRows];
    for (int i = 0; i < pass; ++i) {
      factors[i] = decay[i];
      if (seen[i].begin == begin) continue;
      AddValuesRows<1>(weights + i * kBlockTokens, decay + i, seen[i].begin,
                       HWY_MIN(seen[i].end, begin), values, dims, ahead, dims,
                       out + int64_t{i} * dims);
      factors[i] = kKeep;
    }
    if constexpr (kMaxRows >= 6) {
      if (pass == 6) AddValuesRows<6>(weights, factors, begin, end, values, dims, ahead, dims, out);
      if (pass == 4) AddValuesRows<4>(weights, factors, begin, end, values, dims, ahead, dims, out);
      if (pass == 3) AddValuesRows<3>(weights, factors, begin, end, values, dims, ahead, dims, out);
    }
    if (pass == 2) AddValuesRows<2>(weights, factors, begin, end, values, dims, ahead, dims, out);
    if (pass == 1) AddValuesRows<1>(weights, factors, begin, end, values, dims, ahead, dims, out);
    for (int i = 0; i < pass; ++i) {
      if (seen[i].end <= end) continue;
      AddValuesRows<1>(weights + i * kBlockTokens, &kKeep, end, seen[i].end, values, dims, ahead,
                       dims, out + int64_t{i} * dims);
    }
    rows -= pass;
    weights += pass * kBlockTokens;
    decay += pass;
    seen += pass;
    out += int64_t{pass} * dims;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace latentd
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
