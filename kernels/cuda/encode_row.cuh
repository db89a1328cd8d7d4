#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/codec.h"
#include "kernels/cuda/cache_tile.cuh"

namespace latentd {

// EncodeRow (kernels/encode_row.cc) and the places of its codes, bit for bit: one segment of two
// rows by a CTA, a half of each warp to a row. Lane j of a half works on dim j of every tile, which
// is partial sum j of the definition. Products and sums are written as intrinsics, which the
// compiler does not contract.
//
// The symmetric grid's six first scales are tried by a warp each; the first warp does the rest. In
// a decode step nothing costs as much as fetching instructions: so loops stay loops, one code
// serves all bits and both orders, and all three passes of the symmetric grid.

inline constexpr int kRowLanes = 16;
inline constexpr int kEncodedRows = 2;  // of a CTA
inline constexpr int kFirstScales = 6;
inline constexpr int kEncodeThreads = 32 * kFirstScales;
inline constexpr int kTilesAtOnce = 4;
inline constexpr unsigned kWholeWarp = 0xffffffffu;

__device__ inline int WarpOfCta() { return static_cast<int>(threadIdx.x / 32); }
__device__ inline int LaneOfWarp() { return static_cast<int>(threadIdx.x % 32); }
__device__ inline int RowOfCta() { return LaneOfWarp() / kRowLanes; }
__device__ inline int RowLane() { return LaneOfWarp() % kRowLanes; }

// Where a token's segment goes.
struct SegmentPlace {
  uint8_t* head;  // its latent head in the page; null where nothing is written
  int token;      // in [0, 64)
};

// FloatToHalf: a NaN keeps its sign and the top of its payload, which the conversion would lose.
__device__ inline uint16_t HalfBits(float value) {
  const uint32_t bits = __float_as_uint(value), magnitude = bits & 0x7fffffff;
  if (magnitude <= 0x7f800000) return __half_as_ushort(__float2half_rn(value));
  return static_cast<uint16_t>((bits >> 16 & 0x8000) | 0x7e00 | (magnitude >> 13 & 0x03ff));
}
__device__ inline float HalfValue(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }

// ---- Whole values ----

// values [count], 0 from there on.
__device__ inline void PutWhole(const SegmentView& segment, bool dim_major, const float* values,
                                int count, const SegmentPlace& place) {
  if (place.head == nullptr) return;
  uint8_t* to = place.head + segment.offset;
  const int lane = RowLane();
  const int first = dim_major ? lane * kBlockTokens + place.token : place.token * kTileDims + lane;
#pragma unroll 2
  for (int tile = WarpOfCta(); tile < segment.dims / kTileDims; tile += kFirstScales) {
    const int i = tile * kTileDims + lane, at = tile * kTileDims * kBlockTokens + first;
    const float x = i < count ? __ldcg(values + i) : 0.0f;
    if (segment.codec == Codec::kF32) {
      reinterpret_cast<float*>(to)[at] = x;
    } else {
      reinterpret_cast<uint16_t*>(to)[at] = HalfBits(x);
    }
  }
}

// ---- Rows in shared memory ----

// A segment of the CTA's rows, and its codes. Values are [tiles / 4][32 lanes][4 tiles], so that a
// lane has its dim of four tiles at once; codes [tiles][2 rows][16 dims].
class SharedRows {
 public:
  static __host__ __device__ int Bytes(int dims) {
    return Batches(dims) * kBatchBytes + dims * kEncodedRows;
  }

  __device__ SharedRows(uint8_t* memory, int dims)
      : tiles(dims / kTileDims),
        values_(reinterpret_cast<float4*>(memory) + LaneOfWarp()),
        codes_(memory + Batches(dims) * kBatchBytes) {}

  // values [count] of the thread's row, 0 from there on.
  __device__ void Load(const float* values, int count) const {
#pragma unroll 1
    for (int batch = WarpOfCta(); batch * kTilesAtOnce < tiles; batch += kFirstScales) {
      const int left = count - batch * kTilesAtOnce * kTileDims, lane = RowLane();
      const float* at = values + batch * kTilesAtOnce * kTileDims + lane;
      float4 four = {0.0f, 0.0f, 0.0f, 0.0f};
      if (left >= kTilesAtOnce * kTileDims) {
        four = {__ldcg(at), __ldcg(at + kTileDims), __ldcg(at + 2 * kTileDims),
                __ldcg(at + 3 * kTileDims)};
      } else if (left > 0) {
        if (lane < left) four.x = __ldcg(at);
        if (lane + kTileDims < left) four.y = __ldcg(at + kTileDims);
        if (lane + 2 * kTileDims < left) four.z = __ldcg(at + 2 * kTileDims);
        if (lane + 3 * kTileDims < left) four.w = __ldcg(at + 3 * kTileDims);
      }
      values_[batch * 32] = four;
    }
  }

  // body(tile, the lane's values of it and those after it), in order.
  template <typename Body>
  __device__ __forceinline__ void ForEach(const Body& body) const {
    int tile = 0;
#pragma unroll 1
    for (; tile + kTilesAtOnce <= tiles; tile += kTilesAtOnce) {
      const float4 four = values_[tile / kTilesAtOnce * 32];
      const float x[kTilesAtOnce] = {four.x, four.y, four.z, four.w};
      body(tile, x);
    }
#pragma unroll 1
    for (; tile < tiles; ++tile) {
      const float x[] = {
          reinterpret_cast<const float*>(values_ + tile / kTilesAtOnce * 32)[tile % kTilesAtOnce]};
      body(tile, x);
    }
  }
  __device__ float first() const { return values_->x; }

  __device__ void SetCode(int tile, int code) const {
    codes_[tile * 32 + LaneOfWarp()] = static_cast<uint8_t>(code);
  }
  // Codes of a tile of the thread's row: dim 4q + j in byte j of the q-th word.
  __device__ uint4 CodesOf(int tile) const {
    return reinterpret_cast<const uint4*>(codes_)[tile * kEncodedRows + RowOfCta()];
  }

  const int tiles;

 private:
  static constexpr int kBatchBytes = 32 * kTilesAtOnce * static_cast<int>(sizeof(float));
  static __host__ __device__ int Batches(int dims) {
    return (dims / kTileDims + kTilesAtOnce - 1) / kTilesAtOnce;
  }

  float4* const values_;
  uint8_t* const codes_;
};

// ---- Places ----

// The third bits of a tile's codes: dim 4q + j in bit 4j + q, or by dim.
__device__ inline uint16_t HighBits(const uint4& codes, bool dim_major) {
  constexpr uint32_t kThird = 0x01010101;
  const uint32_t quads[] = {codes.x >> 2 & kThird, codes.y >> 2 & kThird, codes.z >> 2 & kThird,
                            codes.w >> 2 & kThird};
  if (dim_major) {
    uint32_t bits = quads[0] | quads[1] << 1 | quads[2] << 2 | quads[3] << 3;  // half of each byte
    bits |= bits >> 4;
    return static_cast<uint16_t>((bits & 0xff) | (bits >> 8 & 0xff00));
  }
  constexpr uint32_t kTogether = 0x10204080;  // brings bit 8j to bit 28 + j
  return static_cast<uint16_t>(quads[0] * kTogether >> 28 | quads[1] * kTogether >> 28 << 4 |
                               quads[2] * kTogether >> 28 << 8 | quads[3] * kTogether >> 28 << 12);
}

// What the first warp has set as codes goes to `tiles`, a tile by each lane: what CodeAt of the
// plane's order reads. A token's bytes of a tile are words of its own.
__device__ inline void PutCodes(int bits, bool dim_major, const SharedRows& rows, uint8_t* tiles,
                                int token) {
  const int words = bits == 8 ? 4 : bits == 4 ? 2 : 1;
  const int first = dim_major ? token : token * words, stride = dim_major ? kBlockTokens : 1;
#pragma unroll 1
  for (int tile = RowLane(); tile < rows.tiles; tile += kRowLanes) {
    const uint4 codes = rows.CodesOf(tile);
    uint8_t* const to = tiles + tile * (kTileDims * kBlockTokens / 8 * bits);
    uint32_t* const word = reinterpret_cast<uint32_t*>(to) + first;
    if (bits == 8) {
      word[0] = codes.x;
      word[stride] = codes.y;
      word[2 * stride] = codes.z;
      word[3 * stride] = codes.w;
    } else if (bits == 4) {
      word[0] = codes.x | codes.z << 4;
      word[stride] = codes.y | codes.w << 4;
    } else {
      constexpr uint32_t kLow = 0x03030303;
      word[0] =
          (codes.x & kLow) | (codes.y & kLow) << 2 | (codes.z & kLow) << 4 | (codes.w & kLow) << 6;
      if (bits == 2) continue;
      reinterpret_cast<uint16_t*>(to + 4 * kBlockTokens)[token] = HighBits(codes, dim_major);
    }
  }
}

// ---- Codes ----

// The 16 partial sums of rows, folded in halves; every lane has the results.
template <int kCount>
__device__ inline void FoldSums(float (&parts)[kCount]) {
#pragma unroll 1
  for (int lane = kRowLanes / 2; lane > 0; lane /= 2) {
#pragma unroll
    for (float& part : parts) part = __fadd_rn(part, __shfl_xor_sync(kWholeWarp, part, lane));
  }
}

struct RowFacts {
  bool finite;
  float sum_squares;
  float min;  // of zeros of both signs 0
  float max;
};

__device__ inline RowFacts Measure(const SharedRows& rows) {
  float sums[2] = {};  // zeros, squares
  float low = rows.first(), high = low;
  rows.ForEach([&](int, const auto& values) {
#pragma unroll
    for (const float x : values) {
      sums[0] = fmaf(x, 0.0f, sums[0]);  // NaN for infinities and NaN, else 0
      sums[1] = __fadd_rn(sums[1], __fmul_rn(x, x));
      low = fminf(low, x);
      high = fmaxf(high, x);
    }
  });
#pragma unroll 1
  for (int lane = kRowLanes / 2; lane > 0; lane /= 2) {
    low = fminf(low, __shfl_xor_sync(kWholeWarp, low, lane));
    high = fmaxf(high, __shfl_xor_sync(kWholeWarp, high, lane));
  }
  FoldSums(sums);
  return {sums[0] == 0.0f, sums[1], __fadd_rn(low, 0.0f), __fadd_rn(high, 0.0f)};
}

inline constexpr float kMaxHalf = 65504.0f;
inline constexpr uint16_t kHalfNan = 0x7e00;

__device__ inline uint16_t SaturatedHalf(float value) {  // of a NaN, too
  return __half_as_ushort(__float2half_rn(value <= kMaxHalf ? value : kMaxHalf));
}
__device__ inline float Inverse(float scale) {
  return scale > 0.0f ? __fdiv_rn(1.0f, scale) : 0.0f;
}

// Codes 0 .. top stand for code - top / 2.
struct Grid {
  __device__ explicit Grid(int bits)
      : middle(static_cast<float>(1 << (bits - 1))),
        top(static_cast<float>((1 << bits) - 1)),
        half_top(0.5f * top) {}

  // In [0, top] whatever x is: of 0 times infinity, a NaN, fmaxf makes 0.
  __device__ float CodeOf(float x, float inverse) const {
    const float shifted = __fadd_rn(__fmul_rn(x, inverse), middle);
    return floorf(fminf(fmaxf(shifted, 0.0f), top));
  }
  __device__ float ValueOf(float code) const { return __fsub_rn(code, half_top); }

  const float middle, top, half_top;
};

// Step of the best uniform quantiser of a unit Gaussian (Max 1960).
__device__ inline float GaussianStep(int bits) {
  return bits == 2 ? 0.9957f : bits == 3 ? 0.5860f : bits == 4 ? 0.3352f : 0.0308f;
}

// What the warps of a CTA tell one another of each row.
struct EncodeMemory {
  float full[kEncodedRows];  // the scale that reaches the largest value
  float best[kEncodedRows];  // of the best quantiser of Gaussian values
  struct Fit {
    float scale;
    float kept;  // of the row's energy
  } fits[kFirstScales][kEncodedRows];
};

// The warp's one of the six first scales.
__device__ inline float FirstScale(const EncodeMemory& memory) {
  const int warp = WarpOfCta(), row = RowOfCta();
  if (warp >= 4) return __fmul_rn(warp == 4 ? 1.0f : 0.88f, memory.best[row]);
  return __fmul_rn(warp == 0   ? 1.0f
                   : warp == 1 ? 0.92f
                   : warp == 2 ? 0.84f
                               : 0.76f,
                   memory.full[row]);
}

// The scale of the fit that keeps most, the first of equal ones.
__device__ inline float BestScale(const EncodeMemory& memory) {
  EncodeMemory::Fit best = memory.fits[0][RowOfCta()];
#pragma unroll 1
  for (int i = 1; i < kFirstScales; ++i) {
    const EncodeMemory::Fit& fit = memory.fits[i][RowOfCta()];
    if (best.kept < fit.kept) best = fit;
  }
  return best.scale;
}

// Sets the codes and returns the scale, in the first warp; `facts` are its alone. The least squares
// fits to the codes of the first scales, then that to the codes of the best of them, then its
// codes. A row that is not finite is no shorter way for its half of the warp: its codes are 0, and
// its scale does not matter.
__device__ inline uint16_t EncodeSymmetric(int bits, const RowFacts& facts, const SharedRows& rows,
                                           EncodeMemory& memory) {
  const Grid grid(bits);
  const int row = RowOfCta();
  if (WarpOfCta() == 0 && RowLane() == 0) {
    const auto dims = static_cast<float>(rows.tiles * kTileDims);
    memory.full[row] = __fdiv_rn(fmaxf(facts.max, -facts.min), grid.half_top);
    memory.best[row] =
        __fmul_rn(__fsqrt_rn(__fdiv_rn(facts.sum_squares, dims)), GaussianStep(bits));
  }
  __syncthreads();
  float scale = FirstScale(memory);
#pragma unroll 1
  for (int pass = 0;; ++pass) {
    const bool last = pass == 2;
    const float inverse = Inverse(scale);
    float sums[2] = {};  // of products with what codes stand for, of squares of that
    rows.ForEach([&](int tile, const auto& values) {
      constexpr int kCount = sizeof(values) / sizeof(float);
      float codes[kCount];
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
        codes[n] = grid.CodeOf(values[n], inverse);
        const float g = grid.ValueOf(codes[n]);
        sums[0] = __fadd_rn(sums[0], __fmul_rn(values[n], g));
        sums[1] = fmaf(g, g, sums[1]);  // the square is exact
      }
      if (!last) return;
#pragma unroll
      for (int n = 0; n < kCount; ++n) {
        rows.SetCode(tile + n, facts.finite ? static_cast<int>(codes[n]) : 0);
      }
    });
    FoldSums(sums);
    // At last the scale that keeps the row's energy.
    const float fit = __fdiv_rn(last ? facts.sum_squares : sums[0], last ? sums[0] : sums[1]);
    const uint16_t stored = SaturatedHalf(last && !(scale > 0.0f) ? 0.0f : fit);
    if (last) return stored;
    scale = HalfValue(stored);
    if (pass > 0) continue;
    if (RowLane() == 0) memory.fits[WarpOfCta()][row] = {scale, __fmul_rn(sums[0], fit)};
    __syncthreads();
    if (WarpOfCta() > 0) return 0;
    scale = BestScale(memory);
  }
}

// As EncodeSymmetric, by the first warp.
__device__ inline CodeScale EncodeMinMax(int bits, const RowFacts& facts, const SharedRows& rows) {
  const float top = static_cast<float>((1 << bits) - 1);
  const uint16_t zero =
      __half_as_ushort(__float2half_rn(fminf(fmaxf(facts.min, -kMaxHalf), kMaxHalf)));
  const uint16_t scale = SaturatedHalf(__fdiv_rn(__fsub_rn(facts.max, facts.min), top));
  const float inverse = Inverse(HalfValue(scale)), minimum = HalfValue(zero);
  rows.ForEach([&](int tile, const auto& values) {
#pragma unroll
    for (const float x : values) {
      const float steps = __fmul_rn(__fsub_rn(x, minimum), inverse);
      const float code = fminf(fmaxf(floorf(__fadd_rn(steps, 0.5f)), 0.0f), top);
      rows.SetCode(tile++, facts.finite ? static_cast<int>(code) : 0);
    }
  });
  return {.scale = scale, .zero = zero};
}

// Writes a segment of the CTA's rows, which have been loaded: codes, scale and zero.
__device__ inline void EncodeSegment(const SegmentView& segment, bool dim_major,
                                     const SharedRows& rows, const SegmentPlace& place) {
  __shared__ EncodeMemory memory;
  const int bits = BitsOf(segment.codec);
  const bool min_max = IsMinMax(segment.codec), first_warp = WarpOfCta() == 0;
  if (min_max && !first_warp) return;
  RowFacts facts = {};
  if (first_warp) facts = Measure(rows);
  CodeScale scale;
  if (min_max) {
    scale = EncodeMinMax(bits, facts, rows);
  } else {
    scale = {.scale = EncodeSymmetric(bits, facts, rows, memory)};
  }
  if (!first_warp) return;
  __syncwarp();  // codes are there
  if (place.head == nullptr) return;
  PutCodes(bits, dim_major, rows, place.head + segment.offset, place.token);
  if (RowLane() != 0) return;
  if (!facts.finite) scale = {.scale = kHalfNan, .zero = kHalfNan};
  uint16_t* scales = reinterpret_cast<uint16_t*>(place.head + segment.scale_offset) + place.token;
  scales[0] = scale.scale;
  if (min_max) scales[kBlockTokens] = scale.zero;
}

}  // namespace latentd
