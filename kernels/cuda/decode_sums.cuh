#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/attention_page.cuh"
#include "kernels/cuda/code_values.cuh"
#include "kernels/cuda/decode_tiles.cuh"
#include "kernels/cuda/decode_work.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/page_tile.cuh"
#include "kernels/cuda/rows.cuh"

namespace latentd {

// What decode attention does with the scores of a page: online softmax, weights times V's scales,
// and the weighted sums of V's codes. By some warps of a block, its values' warps.

inline constexpr int kMaxValueBlocks = 12;

// Integers in the order of floats. What is no number comes first or last.
__device__ inline int Ordered(int bits) { return bits ^ (bits >> 31 & 0x7FFFFFFF); }
__device__ inline float WarpMax(float x) {
  return __int_as_float(Ordered(__reduce_max_sync(0xffffffffu, Ordered(__float_as_int(x)))));
}
// A power of 2 not below x >= 0, and not below the least normal number.
__device__ inline float PowerOfTwo(float x) {
  return __uint_as_float(max(0x00800000u, (__float_as_uint(x) + 0x007FFFFFu) & 0x7F800000u));
}

// Its shared memory, in bytes.
struct SumsParts {
  __host__ __device__ SumsParts(int warps, int query_tiles, int segments) {
    rows = 8 * query_tiles;
    corrections = 0;
    units = 4 * rows;
    changes = units + 4 * warps * kMaxSegments;
    weights = changes + 4 * warps * kMaxSegments;
    bytes = weights + segments * rows * kWeightStride * 2;
  }
  int rows;
  int corrections, units, changes, weights;
  int bytes;
};

// The codes of V that a kernel takes: symmetric ones of at most 4 bits; those of 8 bits, too; or
// halves, too, whose tiles lie as they are cached, or with their parts exchanged.
enum class ValueCodes : uint8_t { kFewBits, kUpTo8Bits, kAll, kAllExchanged };

// A warp has halves of blocks, kHalves at most: two of the four products of each.
template <int kWarps, int kHalves, int kQueryTiles, ValueCodes kCodes>
class DecodeSums {
 public:
  static constexpr bool kHasBytes = kCodes != ValueCodes::kFewBits;
  static constexpr bool kHasHalves = kHasBytes && kCodes != ValueCodes::kUpTo8Bits;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kRows = 8 * kQueryTiles;
  static constexpr int kQueriesOfWarp = (kRows + kWarps - 1) / kWarps;

  __device__ __forceinline__ DecodeSums(const PlaneView& plane, const ValueBlock* blocks,
                                        int num_blocks, int queries, uint8_t* memory)
      : plane_(plane),
        blocks_(blocks),
        num_blocks_(num_blocks),
        queries_(queries),
        warp_(Uniform(static_cast<int>(threadIdx.x) / 32 % kWarps)),
        lane_(threadIdx.x % 32) {
    const SumsParts parts(kWarps, kQueryTiles, plane.num_segments);
    corrections_ = reinterpret_cast<float*>(memory + parts.corrections);
    units_ = reinterpret_cast<float*>(memory + parts.units) + warp_ * kMaxSegments;
    changes_ = reinterpret_cast<float*>(memory + parts.changes) + warp_ * kMaxSegments;
    weights_ = reinterpret_cast<__half*>(memory + parts.weights);
    const int thread = threadIdx.x % kThreads;
    auto* words = reinterpret_cast<uint32_t*>(weights_);
    for (int i = thread; i < plane.num_segments * kRows * kWeightStride / 2; i += kThreads) {
      words[i] = 0;
    }
    for (int i = thread; i < kRows; i += kThreads) corrections_[i] = 1.0f;
  }

  __device__ __forceinline__ void Begin() {
#pragma unroll
    for (int i = 0; i < kQueriesOfWarp; ++i) {
      largest_[i] = -INFINITY;
      sum_[i] = 0.0f;
    }
    if (lane_ < kMaxSegments) units_[lane_] = PowerOfTwo(0.0f);
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      for (int j = 0; j < 2; ++j) {
        for (int n = 0; n < kQueryTiles; ++n) sums_[h][j][n] = FragmentD{};
      }
    }
  }

  // V's scales of the page's tokens [first, last].
  __device__ __forceinline__ void BeginPage(int first, int last, const uint8_t* values) {
#pragma unroll
    for (int e = 0; e < 2; ++e) {
      const int token = lane_ + 32 * e;
      sees_[e] = first <= token && token <= last;
    }
#pragma unroll
    for (int s = 0; s < kMaxSegments; ++s) {
      if (s < plane_.num_segments) LoadScales(s, values, scales_[s]);
    }
  }

  // Weights of the page's tokens. scores [queries][kScoreStride]; their exponents of 2
  // are scale_of(query) * score + slope_of(query) * (token - last).
  template <typename ScaleOf, typename SlopeOf>
  __device__ __forceinline__ void Softmax(int last, const float* scores, const ScaleOf& scale_of,
                                          const SlopeOf& slope_of) {
    if (warp_ >= queries_) return;
    // Rows that are no query do as the last one: without branches their chains overlap.
    float weights[kQueriesOfWarp][2];
#pragma unroll
    for (int i = 0; i < kQueriesOfWarp; ++i) {
      const int query = min(warp_ + kWarps * i, queries_ - 1);
      const float scale = scale_of(query), slope = slope_of(query);
      for (int e = 0; e < 2; ++e) {
        const int token = lane_ + 32 * e;
        const float score =
            scores[query * kScoreStride + token] * scale + slope * static_cast<float>(token - last);
        weights[i][e] = !sees_[e] ? -INFINITY : fabsf(score) < INFINITY ? score : NAN;
      }
    }
#pragma unroll
    for (int i = 0; i < kQueriesOfWarp; ++i) {
      const float added = weights[i][0] + weights[i][1];
      const bool fault = __any_sync(0xffffffffu, added != added);  // a score that is no number
      const float largest = fmaxf(largest_[i], WarpMax(fmaxf(weights[i][0], weights[i][1])));
      const bool none = largest == -INFINITY;
      for (float& x : weights[i]) x = none ? 0.0f : exp2f(x - largest);
      const float correction = none ? 1.0f : exp2f(largest_[i] - largest);
      sum_[i] = fault ? NAN : sum_[i] * correction + weights[i][0] + weights[i][1];
      largest_[i] = largest;
      if (lane_ == 0) corrections_[warp_ + kWarps * i] = correction;
    }
#pragma unroll
    for (int s = 0; s < kMaxSegments; ++s) {
      if (s >= plane_.num_segments) break;
      __half* to = weights_ + (s * kRows + warp_) * kWeightStride + lane_;
#pragma unroll
      for (int i = 0; i < kQueriesOfWarp; ++i) {
        for (int e = 0; e < 2; ++e) {
          to[kWarps * i * kWeightStride + 32 * e] =
              __float2half_rn(sees_[e] ? weights[i][e] * scales_[s][e] : 0.0f);
        }
      }
    }
    __syncwarp();
  }

  // sums = V^T weights^T: rows are dims, columns queries. Of codes, row lane / 4 of product j of a
  // block is dim 4 half + j of tile lane / 8, row 8 + lane / 4 the one 8 further; of halves,
  // product j is tile j. Only the page's tokens [first, last] must be numbers.
  __device__ __forceinline__ void Add(const uint8_t* values, int first, int last) {
    const int quad = lane_ % 4;
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const int half = warp_ + kWarps * h, side = half % 2;
      if (half >= 2 * num_blocks_) break;
      const ValueBlock& of = blocks_[half / 2];
      const float change = changes_[of.segment];
#pragma unroll
      for (int n = 0; n < kQueryTiles; ++n) {
        const float left = corrections_[8 * n + 2 * quad] * change;
        const float right = corrections_[8 * n + 2 * quad + 1] * change;
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          sums_[h][j][n].x[0] *= left;
          sums_[h][j][n].x[1] *= right;
          sums_[h][j][n].x[2] *= left;
          sums_[h][j][n].x[3] *= right;
        }
      }
      switch (of.bits) {
        case 4:
          Nibbles<4>(values, of, side, sums_[h]);
          break;
        case 3:
          Nibbles<3>(values, of, side, sums_[h]);
          break;
        case 2:
          Nibbles<2>(values, of, side, sums_[h]);
          break;
        case 8:
          if (kHasBytes) Bytes(values, of, side, sums_[h]);
          break;
        default:
          if (kHasHalves) Halves(values, of, side, first, last, sums_[h]);
      }
    }
  }

  // The partial results [queries][2 + dims] of all pages since Begin. `staged`: as many floats of
  // shared memory that nobody else uses: so they go to `place` in rows, and not in words here and
  // there as the threads have them.
  __device__ __forceinline__ void Write(float* staged, float* place) const {
    const int size = 2 + plane_.dims, quad = lane_ % 4;
#pragma unroll
    for (int i = 0; i < kQueriesOfWarp; ++i) {
      const int query = warp_ + kWarps * i;
      if (query >= queries_) break;
      const float sum = WarpSum(sum_[i]);
      if (lane_ == 0) {
        staged[query * size] = sum == sum ? largest_[i] : 0.0f;
        staged[query * size + 1] = sum;
      }
    }
#pragma unroll
    for (int h = 0; h < kHalves; ++h) {
      const int half = warp_ + kWarps * h, side = half % 2;
      if (half >= 2 * num_blocks_) break;
      const ValueBlock& of = blocks_[half / 2];
      const bool halves = kHasHalves && of.bits == 16;
      if (!halves && lane_ / 8 >= of.tiles) continue;
      const float unit = units_[of.segment];
      const int dim =
          of.first_dim + (halves ? lane_ / 4 : lane_ / 8 * kTileDims + lane_ / 4 % 2 * 4);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int product = 2 * side + j;
        if (halves && product >= of.tiles) break;
        const int of_product = dim + (halves ? kTileDims * product : product);
#pragma unroll
        for (int n = 0; n < kQueryTiles; ++n) {
          for (int e = 0; e < 2; ++e) {
            const int query = 8 * n + 2 * quad + e;
            if (query >= queries_) continue;
            float* to = staged + query * size + 2 + of_product;
            to[0] = sums_[h][j][n].x[e] * unit;
            to[8] = sums_[h][j][n].x[2 + e] * unit;
          }
        }
      }
    }
    WaitForOthers(1, kThreads);
    const auto* from = reinterpret_cast<const float2*>(staged);
    for (int i = threadIdx.x % kThreads; i < queries_ * size / 2; i += kThreads) {
      reinterpret_cast<float2*>(place)[i] = from[i];
    }
  }

 private:
  // V's scales of the lane's tokens, in a unit that only grows, so that halves hold them.
  __device__ __forceinline__ void LoadScales(int segment, const uint8_t* values,
                                             float (&scale)[2]) {
    const SegmentView& of = plane_.segments[segment];
    if (kHasHalves && !IsScaled(of.codec)) {
      scale[0] = scale[1] = 1.0f;
      if (lane_ == 0) units_[segment] = changes_[segment] = 1.0f;
      return;
    }
    const auto* scales = reinterpret_cast<const __half*>(values + of.scale_offset) + lane_;
    for (int e = 0; e < 2; ++e) scale[e] = sees_[e] ? __half2float(scales[32 * e]) : 0.0f;
    const float before = units_[segment];
    const float unit = fmaxf(before, PowerOfTwo(WarpMax(fmaxf(scale[0], scale[1]))));
    const float inverse = __int_as_float((254 << 23) - __float_as_int(unit));  // of a power of 2
    __syncwarp();
    if (lane_ == 0) {
      units_[segment] = unit;
      changes_[segment] = before * inverse;
    }
    for (float& x : scale) x *= inverse;
  }

  using HalfSums = FragmentD[2][kQueryTiles];

  // Adds the products of 16 tokens of half a block with their weights.
  __device__ __forceinline__ void AddProducts(const FragmentA (&a)[2], int segment, int step,
                                              HalfSums& sums) const {
    const __half* weights =
        weights_ + (segment * kRows + lane_ / 4) * kWeightStride + lane_ % 4 * 2 + 16 * step;
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
      const auto* two = reinterpret_cast<const uint32_t*>(weights + 8 * n * kWeightStride);
      const FragmentB of_queries = {{two[0], two[4]}};
#pragma unroll
      for (int j = 0; j < 2; ++j) MultiplyAdd(a[j], of_queries, sums[j][n]);
    }
  }

  template <int kBits>
  __device__ __forceinline__ void Nibbles(const uint8_t* values, const ValueBlock& of, int side,
                                          HalfSums& sums) const {
    const int half = lane_ / 4 % 2, selector = side == 0 ? 0x5410 : 0x7632;
    const __half2 middle = NibbleMiddle(kBits);
    const uint8_t* tile =
        values + of.offset + min(lane_ / 8, of.tiles - 1) * (kTileDims * kBlockTokens * kBits / 8);
#pragma unroll
    for (int step = 0; step < kBlockTokens / 16; ++step) {
      FragmentA a[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = 16 * step + 8 * i + lane_ % 4 * 2;
        const uint32_t one = ValueNibbles<kBits>(tile, token, half);
        const uint32_t next = ValueNibbles<kBits>(tile, token + 1, half);
        const uint32_t both = __byte_perm(one, next, selector);
        a[0].x[2 * i] = NibbleValues(both << 4, middle);
        a[0].x[2 * i + 1] = NibbleValues(both, middle);
        a[1].x[2 * i] = NibbleValues(both >> 4, middle);
        a[1].x[2 * i + 1] = NibbleValues(both >> 8, middle);
      }
      AddProducts(a, of.segment, step, sums);
    }
  }

  // For 16 tokens each. Where registers are few the steps are not unrolled.
  template <typename Step>
  static __device__ __forceinline__ void ForSteps(const Step& step) {
    constexpr int kSteps = kBlockTokens / 16;
    if constexpr (kCodes != ValueCodes::kAllExchanged) {
#pragma unroll 1
      for (int i = 0; i < kSteps; ++i) step(i);
    } else {
#pragma unroll
      for (int i = 0; i < kSteps; ++i) step(i);
    }
  }

  __device__ __forceinline__ void Bytes(const uint8_t* values, const ValueBlock& of, int side,
                                        HalfSums& sums) const {
    const int half = lane_ / 4 % 2, selector = side == 0 ? 0x5140 : 0x7362;
    const uint8_t* tile =
        values + of.offset + min(lane_ / 8, of.tiles - 1) * (kTileDims * kBlockTokens);
    ForSteps([&](int step) {
      FragmentA a[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = 16 * step + 8 * i + lane_ % 4 * 2;
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const auto* words = reinterpret_cast<const uint32_t*>(tile) + 4 * token + 2 * k + half;
          const uint32_t both = __byte_perm(words[0], words[4], selector);
          a[0].x[2 * i + k] = ByteValues(both, 0x4140);
          a[1].x[2 * i + k] = ByteValues(both, 0x4342);
        }
      }
      AddProducts(a, of.segment, step, sums);
    });
  }

  // What lies outside of [first, last] may be anything: a weight of 0 does not hide that.
  __device__ __forceinline__ void Halves(const uint8_t* values, const ValueBlock& of, int side,
                                         int first, int last, HalfSums& sums) const {
    ForSteps([&](int step) {
      FragmentA a[2];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int tile = min(2 * side + j, of.tiles - 1);
        a[j] = LoadValues<kCodes == ValueCodes::kAllExchanged>(
            values + of.offset + tile * (2 * kTileDims * kBlockTokens), 16 * step);
        if (first <= 0 && last >= kBlockTokens - 1) continue;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int token = 16 * step + i / 2 * 8 + lane_ % 4 * 2;
          if (token < first || token > last) a[j].x[i] &= 0xFFFF0000u;
          if (token + 1 < first || token + 1 > last) a[j].x[i] &= 0xFFFFu;
        }
      }
      AddProducts(a, of.segment, step, sums);
    });
  }

  const PlaneView& plane_;
  const ValueBlock* blocks_;
  const int num_blocks_, queries_, warp_, lane_;
  float *corrections_, *units_, *changes_;  // units, changes: of the warp's own
  __half* weights_;
  bool sees_[2];
  float scales_[kMaxSegments][2];  // of a page's tokens
  float largest_[kQueriesOfWarp], sum_[kQueriesOfWarp];
  FragmentD sums_[kHalves][2][kQueryTiles];
};

}  // namespace latentd
