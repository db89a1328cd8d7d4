#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/plan_view.h"

namespace latentd {

// The device's side of kernels/cache_layout.h: single values of a cached row, and where what a
// sequence keeps beside its blocks lies (kernels/cache_view.h).

__device__ inline float HalfAt(const uint8_t* at) {
  return __half2float(*reinterpret_cast<const __half*>(at));
}

constexpr __host__ __device__ int BitsOf(Codec codec) {
  switch (codec) {
    case Codec::kF32:
      return 32;
    case Codec::kF16:
      return 16;
    case Codec::kInt8:
      return 8;
    case Codec::kInt4:
    case Codec::kMinMax4:
      return 4;
    case Codec::kInt3:
    case Codec::kMinMax3:
      return 3;
    default:
      return 2;
  }
}
constexpr __host__ __device__ bool IsMinMax(Codec codec) { return codec >= Codec::kMinMax4; }
constexpr __host__ __device__ bool IsScaled(Codec codec) { return codec >= Codec::kInt8; }

// The code (or, of whole values, its value) of `dim` in [0, 16) of a tile and `token` in [0, 64),
// by the order of the plane.
template <TileOrder kOrder>
__device__ inline int CodeAt(int bits, const uint8_t* tile, int dim, int token) {
  constexpr bool kDims = kOrder == TileOrder::kDimMajor;
  if (bits == 8)
    return tile[kDims ? (dim / 4 * kBlockTokens + token) * 4 + dim % 4 : token * 16 + dim];
  if (bits == 4) {
    const int byte =
        kDims ? (dim / 4 % 2 * kBlockTokens + token) * 4 + dim % 4 : token * 8 + dim % 8;
    return tile[byte] >> 4 * (dim / 8) & 15;
  }
  const int low = tile[token * 4 + dim % 4] >> 2 * (dim / 4) & 3;
  if (bits == 2) return low;
  const int bit = kDims ? 4 * (dim % 4) + dim / 4 : dim;
  return low | (tile[4 * kBlockTokens + token * 2 + bit / 8] >> bit % 8 & 1) << 2;
}

// Value = scale * code + offset of one token of a segment; (1, 0) of whole values.
struct Affine {
  float scale = 1.0f, offset = 0.0f;
};
__device__ inline Affine AffineAt(const SegmentView& s, const uint8_t* head, int token) {
  if (!IsScaled(s.codec)) return {};
  const uint8_t* scales = head + s.scale_offset + 2 * token;
  const float scale = HalfAt(scales);
  if (IsMinMax(s.codec)) return {scale, HalfAt(scales + 2 * kBlockTokens)};
  return {scale, -0.5f * static_cast<float>((1 << BitsOf(s.codec)) - 1) * scale};
}

// One value as the segment stores it, before scale and offset: a code, or the value itself.
template <TileOrder kOrder>
__device__ inline float StoredAt(const SegmentView& s, const uint8_t* head, int dim, int token) {
  const int bits = BitsOf(s.codec);
  const uint8_t* tile = head + s.offset + dim / kTileDims * (kTileDims * kBlockTokens * bits / 8);
  dim %= kTileDims;
  if (IsScaled(s.codec)) return static_cast<float>(CodeAt<kOrder>(bits, tile, dim, token));
  const int index =
      kOrder == TileOrder::kTokenMajor ? token * kTileDims + dim : dim * kBlockTokens + token;
  return bits == 32 ? reinterpret_cast<const float*>(tile)[index] : HalfAt(tile + 2 * index);
}

// The sequence that owns row `row` of the step.
__device__ inline int SequenceOf(const StepView& step, int row) {
  int low = 0, high = step.num_sequences - 1;
  // Where the sequences up to it have a row each, as in a decode step, there is no search.
  if (row <= high && step.cu_q_lens[row] == row && step.cu_q_lens[row + 1] > row) return row;
  while (low < high) {  // the first whose rows end after `row`
    const int middle = (low + high) / 2;
    if (step.cu_q_lens[middle + 1] > row) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

__device__ inline uint8_t* SinksOf(const PlanView& plan, const StepView& step, int sequence) {
  return step.seats + step.seat_of[sequence] * plan.sequence_bytes;
}

// The own page `page` of the sequence: the last one in its seat, the others in the step's pages.
__device__ inline uint8_t* OwnPageOf(const PlanView& plan, const StepView& step, int sequence,
                                     int page) {
  const int kv_len = step.kv_lens[sequence];
  const int rows = step.cu_q_lens[sequence + 1] - step.cu_q_lens[sequence];
  if (page == (kv_len - 1) / kBlockTokens) {
    return SinksOf(plan, step, sequence) + plan.sink_bytes;
  }
  const int64_t index =
      int64_t{step.first_step_page[sequence]} + page - (kv_len - rows) / kBlockTokens;
  return step.step_pages + index * plan.own.bytes;
}

}  // namespace latentd
