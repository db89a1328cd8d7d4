#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/codec.h"
#include "kernels/cuda/cache_tile.cuh"

namespace latentd {

// EncodeRow (kernels/encode_row.cc) and the places of its codes, bit for bit, by the 16 lanes of a
// half-warp: lane j works on dim j of every tile, which is partial sum j of the definition.
// Products and sums are written as intrinsics, which the compiler does not contract.
//
// The two halves of a warp encode the same segment of two rows, always together: every lane of the
// warp makes each call. No byte of a tile is shared by two tokens, and one lane composes each byte.

inline constexpr int kRowLanes = 16;
inline constexpr unsigned kWholeWarp = 0xffffffffu;

__device__ inline int RowLane() { return static_cast<int>(threadIdx.x % kRowLanes); }

// One segment of one token, and where it goes. A lane has its dims of the first tiles in registers,
// all loaded at once: the passes over a row wait for nothing.
class RowSegment {
 public:
  // values [count]; the segment's dims from there on are 0. `head`: its latent head in the page,
  // null where nothing is written; `token` in [0, 64).
  __device__ __forceinline__ RowSegment(const float* values, int count, int dims, uint8_t* head,
                                        int token)
      : head(head), token(token), values_(values), count_(count), tiles_(dims / kRowLanes) {
#pragma unroll
    for (int tile = 0; tile < kHeldTiles; ++tile) held_[tile] = Load(tile);
  }

  // body(tile, the lane's value of it), in order.
  template <typename Body>
  __device__ __forceinline__ void ForEach(const Body& body) const {
#pragma unroll
    for (int tile = 0; tile < kHeldTiles; ++tile) {
      if (tile >= tiles_) return;
      body(tile, held_[tile]);
    }
    for (int tile = kHeldTiles; tile < tiles_; ++tile) body(tile, Load(tile));
  }
  __device__ __forceinline__ float first() const { return held_[0]; }

  uint8_t* const head;
  const int token;

 private:
  __device__ __forceinline__ float Load(int tile) const {
    const int i = tile * kRowLanes + RowLane();
    return i < count_ ? __ldg(values_ + i) : 0.0f;
  }

  static constexpr int kHeldTiles = 16;

  const float* const values_;
  const int count_, tiles_;
  float held_[kHeldTiles];
};

// FloatToHalf: a NaN keeps its sign and the top of its payload, which the conversion would lose.
__device__ inline uint16_t HalfBits(float value) {
  const uint32_t bits = __float_as_uint(value), magnitude = bits & 0x7fffffff;
  if (magnitude <= 0x7f800000) return __half_as_ushort(__float2half_rn(value));
  return static_cast<uint16_t>((bits >> 16 & 0x8000) | 0x7e00 | (magnitude >> 13 & 0x03ff));
}
__device__ inline float HalfValue(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }

// ---- Places ----

__device__ inline int OrOverLanes(int bits, int first_lane, int last_lane) {
  for (int lane = first_lane; lane <= last_lane; lane *= 2) {
    bits |= __shfl_xor_sync(kWholeWarp, bits, lane);
  }
  return bits;
}

// Each lane's code to its dim of the tile; what CodeAt of the plane's order reads.
template <TileOrder kOrder>
__device__ inline void PutCodes(int bits, int code, uint8_t* tile, int token, bool writes) {
  constexpr bool kDims = kOrder == TileOrder::kDimMajor;
  const int dim = RowLane();
  const int word_byte = (dim / 4 * kBlockTokens + token) * 4 + dim % 4;
  if (bits == 8) {
    if (writes) tile[kDims ? word_byte : token * 16 + dim] = static_cast<uint8_t>(code);
    return;
  }
  if (bits == 4) {  // dims j and 8 + j
    const int byte = OrOverLanes(code << 4 * (dim / 8), 8, 8);
    if (writes && dim < 8) tile[kDims ? word_byte : token * 8 + dim] = static_cast<uint8_t>(byte);
    return;
  }
  const int byte = OrOverLanes((code & 3) << 2 * (dim / 4), 4, 8);  // dims j, 4 + j, 8 + j, 12 + j
  if (writes && dim < 4) tile[token * 4 + dim] = static_cast<uint8_t>(byte);
  if (bits == 2) return;
  const int bit = kDims ? 4 * (dim % 4) + dim / 4 : dim;
  const int high = OrOverLanes(code >> 2 << bit, 1, 8);
  if (writes && dim == 0) {
    reinterpret_cast<uint16_t*>(tile + 4 * kBlockTokens)[token] = static_cast<uint16_t>(high);
  }
}

template <TileOrder kOrder>
__device__ inline void PutWhole(const SegmentView& segment, const RowSegment& row) {
  if (row.head == nullptr) return;
  row.ForEach([&](int tile, float x) {
    const int place = tile * kTileDims * kBlockTokens +
                      (kOrder == TileOrder::kTokenMajor ? row.token * kTileDims + RowLane()
                                                        : RowLane() * kBlockTokens + row.token);
    uint8_t* to = row.head + segment.offset;
    if (segment.codec == Codec::kF32) {
      reinterpret_cast<float*>(to)[place] = x;
    } else {
      reinterpret_cast<uint16_t*>(to)[place] = HalfBits(x);
    }
  });
}

// ---- Codes ----

// The 16 partial sums of a row, folded in halves; every lane has the result.
__device__ inline float RowSum(float part) {
  for (int lane = kRowLanes / 2; lane > 0; lane /= 2) {
    part = __fadd_rn(part, __shfl_xor_sync(kWholeWarp, part, lane));
  }
  return part;
}

struct RowFacts {
  bool finite;
  float sum_squares;
  float min;  // of zeros of both signs 0
  float max;
};

__device__ inline RowFacts Measure(const RowSegment& row) {
  float zeros = 0.0f, squares = 0.0f;
  float low = row.first(), high = low;
  row.ForEach([&](int, float x) {
    zeros = __fadd_rn(zeros, __fsub_rn(x, x));  // NaN for infinities and NaN, else 0
    squares = __fadd_rn(squares, __fmul_rn(x, x));
    low = fminf(low, x);
    high = fmaxf(high, x);
  });
  for (int lane = kRowLanes / 2; lane > 0; lane /= 2) {
    low = fminf(low, __shfl_xor_sync(kWholeWarp, low, lane));
    high = fmaxf(high, __shfl_xor_sync(kWholeWarp, high, lane));
  }
  return {RowSum(zeros) == 0.0f, RowSum(squares), __fadd_rn(low, 0.0f), __fadd_rn(high, 0.0f)};
}

inline constexpr float kMaxHalf = 65504.0f;
inline constexpr uint16_t kHalfNan = 0x7e00;

__device__ inline uint16_t SaturatedHalf(float value) {
  return HalfBits(value <= kMaxHalf ? value : kMaxHalf);
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

struct Fit {
  float scale;
  float kept;
};

// The least squares fits to the codes of `kCount` scales, side by side.
template <int kCount>
__device__ inline void LeastSquares(const Grid& grid, const RowSegment& row,
                                    const float (&from)[kCount], Fit (&fits)[kCount]) {
  float inverse[kCount], products[kCount], squares[kCount];
#pragma unroll
  for (int c = 0; c < kCount; ++c) {
    inverse[c] = Inverse(from[c]);
    products[c] = squares[c] = 0.0f;
  }
  row.ForEach([&](int, float x) {
#pragma unroll
    for (int c = 0; c < kCount; ++c) {
      const float g = grid.ValueOf(grid.CodeOf(x, inverse[c]));
      products[c] = __fadd_rn(products[c], __fmul_rn(x, g));
      squares[c] = __fadd_rn(squares[c], __fmul_rn(g, g));
    }
  });
#pragma unroll
  for (int c = 0; c < kCount; ++c) {
    const float product = RowSum(products[c]);
    const float scale = __fdiv_rn(product, RowSum(squares[c]));
    fits[c] = {HalfValue(SaturatedHalf(scale)), __fmul_rn(product, scale)};
  }
}

// Step of the best uniform quantiser of a unit Gaussian (Max 1960).
__device__ inline float GaussianStep(int bits) {
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

// The fit that keeps most of the row's energy, of those to the codes of six scales.
__device__ inline Fit BestFit(const Grid& grid, int bits, const RowFacts& facts,
                              const RowSegment& row, int dims) {
  const float rms = __fsqrt_rn(__fdiv_rn(facts.sum_squares, static_cast<float>(dims)));
  const float full = __fdiv_rn(fmaxf(facts.max, -facts.min), grid.half_top);
  const float best = __fmul_rn(rms, GaussianStep(bits));
  const float starts[] = {
      full, __fmul_rn(0.92f, full), __fmul_rn(0.84f, full), __fmul_rn(0.76f, full),
      best, __fmul_rn(0.88f, best)};
  Fit fits[6];
  LeastSquares(grid, row, starts, fits);
  Fit fit = fits[0];
#pragma unroll
  for (int c = 1; c < 6; ++c) {
    if (fit.kept < fits[c].kept) fit = fits[c];
  }
  return fit;
}

// Codes go to `tiles`. So that the other half of the warp is not left alone, a row that is not
// finite is no shorter way: its codes are 0, and its scale does not matter.
template <TileOrder kOrder>
__device__ inline CodeScale EncodeSymmetric(int bits, const RowFacts& facts, const RowSegment& row,
                                            int dims, uint8_t* tiles) {
  const Grid grid(bits);
  const float start[] = {BestFit(grid, bits, facts, row, dims).scale};
  Fit fit[1];
  LeastSquares(grid, row, start, fit);
  const float inverse = Inverse(fit[0].scale);
  float products = 0.0f;
  row.ForEach([&](int tile, float x) {
    const float code = grid.CodeOf(x, inverse);
    PutCodes<kOrder>(bits, facts.finite ? static_cast<int>(code) : 0,
                     tiles + tile * (kTileDims * kBlockTokens * bits / 8), row.token,
                     row.head != nullptr);
    products = __fadd_rn(products, __fmul_rn(x, grid.ValueOf(code)));
  });
  const float product = RowSum(products);
  const float unbiased = fit[0].scale > 0.0f ? __fdiv_rn(facts.sum_squares, product) : 0.0f;
  return {.scale = SaturatedHalf(unbiased)};
}

// As EncodeSymmetric.
template <TileOrder kOrder>
__device__ inline CodeScale EncodeMinMax(int bits, const RowFacts& facts, const RowSegment& row,
                                         uint8_t* tiles) {
  const float top = static_cast<float>((1 << bits) - 1);
  const uint16_t zero = HalfBits(fminf(fmaxf(facts.min, -kMaxHalf), kMaxHalf));
  const uint16_t scale = SaturatedHalf(__fdiv_rn(__fsub_rn(facts.max, facts.min), top));
  const float inverse = Inverse(HalfValue(scale)), minimum = HalfValue(zero);
  row.ForEach([&](int tile, float x) {
    const float steps = __fmul_rn(__fsub_rn(x, minimum), inverse);
    const float code = fminf(fmaxf(floorf(__fadd_rn(steps, 0.5f)), 0.0f), top);
    PutCodes<kOrder>(bits, facts.finite ? static_cast<int>(code) : 0,
                     tiles + tile * (kTileDims * kBlockTokens * bits / 8), row.token,
                     row.head != nullptr);
  });
  return {.scale = scale, .zero = zero};
}

// Writes the segment's values, or codes, scale and zero, of one token per half-warp.
template <TileOrder kOrder>
__device__ inline void EncodeSegment(const SegmentView& segment, const RowSegment& row) {
  if (!IsScaled(segment.codec)) return PutWhole<kOrder>(segment, row);
  const int bits = BitsOf(segment.codec);
  const bool min_max = IsMinMax(segment.codec);
  const RowFacts facts = Measure(row);
  uint8_t* tiles = row.head + segment.offset;
  CodeScale scale = min_max ? EncodeMinMax<kOrder>(bits, facts, row, tiles)
                            : EncodeSymmetric<kOrder>(bits, facts, row, segment.dims, tiles);
  if (!facts.finite) scale = {.scale = kHalfNan, .zero = kHalfNan};
  if (row.head == nullptr || RowLane() != 0) return;
  uint16_t* scales = reinterpret_cast<uint16_t*>(row.head + segment.scale_offset);
  scales[row.token] = scale.scale;
  if (min_max) scales[kBlockTokens + row.token] = scale.zero;
}

}  // namespace latentd
