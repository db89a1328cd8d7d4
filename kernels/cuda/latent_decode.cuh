#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/decode_sums.cuh"
#include "kernels/cuda/decode_work.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/key_factors.h"

namespace latentd {

// Decode attention on latents whose keys are rebuilt (kReconstruct), for Hopper.
//
// A block attends for one unit: KV heads of one latent head, whose factors k_up stay in its shared
// memory. Two warpgroups rebuild keys and leave scores, each of every second page, or of every
// second pass of a block's only page; one of their threads fetches the block's first pages. Two
// more together fetch all others, turn the queries back by the angle of each page's start (so that
// keys are turned by their offset in the page alone), and take scores and values to the result.
//
//   kInt8, of K of at most 4 bits in segments that begin at multiples of 32 dims, without a k_bias,
//   and V of symmetric codes:
//     codes -> int8 (registers; of one segment exact) x k_up -> int32 -> bf16 keys, turned -> x
//     queries -> scores
//   kFp16, of all else:
//     latents -> fp16 (registers) x k_up + k_bias -> fp32 -> fp16 keys, turned -> x queries ->
//     scores
//   scores -> weights -> x token scales -> fp16 x codes of V (exact fp16) -> sums, fp32

inline constexpr int kGroupThreads = 128;  // of a warpgroup
inline constexpr int kKeyGroups = 2;
inline constexpr int kValueThreads = 2 * kGroupThreads;
inline constexpr int kDecodeThreads = kKeyGroups * kGroupThreads + kValueThreads;
// Of a thread that rebuilds keys; one of values has what is left of 256 for two.
template <FactorKind kKind, ValueCodes kCodes>
inline constexpr int kKeyRegisters = kKind == FactorKind::kFp16         ? 136
                                     : kCodes == ValueCodes::kUpTo8Bits ? 144
                                                                        : 152;
inline constexpr int kRing = 3;       // scores and turned queries: how far keys are ahead of values
inline constexpr int kMaxStages = 6;  // of fetched pages
inline constexpr int kDimsAtOnce = 256;  // of K, that registers hold
inline constexpr int kMaxKeyDims = 512;
inline constexpr int kMaxPasses = 4;  // products of 128 columns of a unit

struct DecodeBarriers {
  PhaseBarrier fetched[kMaxStages];
  PhaseBarrier factors[kMaxPasses];
  PhaseBarrier turned[kRing];
  PhaseBarrier scored[kRing];
};

__host__ __device__ inline bool ReadsOwnPages(const PlanView& plan) {
  return plan.decode.pages == DecodePages::kOwn;
}

// The parts of a block's shared memory, in bytes.
struct DecodeParts {
  DecodeParts(const PlanView& plan, int stages, int sequences) {
    per_kv = plan.num_heads / plan.num_kv_heads;
    kv_heads_of_latent = plan.num_kv_heads / plan.coded.k.latent_heads;
    queries = plan.decode.heads * per_kv;
    ring = ReadsOwnPages(plan) ? 1 : kRing;  // an own page is a piece
    passes = (plan.decode.heads * plan.head_dim + kFactorColumns - 1) / kFactorColumns;
    query_stride = 2 * plan.head_dim + 32;
    k_bytes = plan.coded.k.head_bytes;
    v_bytes = plan.coded.v.head_bytes;
    bias = plan.key_factors.unit_bytes - (plan.k_bias != nullptr ? passes * kBiasBytes : 0);
    pass_bytes = bias / passes;
    norm_bytes = plan.key_norms > 0 ? 2 * kBlockTokens * plan.decode.heads : 0;
    stage_bytes = (k_bytes + v_bytes + norm_bytes + 127) / 128 * 128;
    int at = plan.key_factors.unit_bytes;
    const auto take = [&at](int bytes) {
      const int begin = at;
      at += (bytes + 127) / 128 * 128;
      return begin;
    };
    stage = take(max(stages * stage_bytes, PieceBytes(plan)));
    turned = take(ring * queries * query_stride);
    query = take(queries * plan.head_dim * 4);
    scores = take(ring * queries * kScoreStride * 4);
    query_scales = take(queries * 4);
    sums =
        take(SumsParts(kValueThreads / 32, QueryTiles(queries), plan.coded.v.num_segments).bytes);
    prefix = take(4 * (sequences + 1));
    barriers = take(sizeof(DecodeBarriers));
    const bool shares_turns = plan.decode.factors == FactorKind::kFp16;
    turns = take(shares_turns ? plan.head_dim / 16 * kGroupThreads * 16 : 0);
    bytes = at;
  }
  int per_kv, kv_heads_of_latent, queries, ring, passes, query_stride;
  int k_bytes, v_bytes, norm_bytes, stage_bytes;
  int bias, pass_bytes, stage, turned, query, scores, query_scales, sums, prefix, barriers, turns;
  int bytes;
};

struct LatentDecodeArguments {
  PlanView plan;
  StepView step;
  const float* q = nullptr;
  float* partials = nullptr;  // [places, or sequences and units][queries of a unit][2 + v dims]
  int stages = 0;
  int late_blocks = 0;    // decode_work.cuh
  DecodeParts parts;      // ready made: a block would count longer than it fetches a page
  int num_key_tiles = 0;  // kFp16
  int num_value_blocks = 0;
  KeyTile key_tiles[kMaxKeyDims / kTileDims];
  ValueBlock value_blocks[kMaxValueBlocks];
};

// Pairs of turned keys and queries: their type, and products of the two.
template <FactorKind kKind>
struct KeyNumbers {
  using Two = __nv_bfloat162;
  static __device__ __forceinline__ Two Of(float low, float high) {
    return __floats2bfloat162_rn(low, high);
  }
  static __device__ __forceinline__ void Multiply(const FragmentA& a, const FragmentB& b,
                                                  FragmentD& d) {
    MultiplyAddBFloat(a, b, d);
  }
};
template <>
struct KeyNumbers<FactorKind::kFp16> {
  using Two = __half2;
  static __device__ __forceinline__ Two Of(float low, float high) {
    return __floats2half2_rn(low, high);
  }
  static __device__ __forceinline__ void Multiply(const FragmentA& a, const FragmentB& b,
                                                  FragmentD& d) {
    MultiplyAdd(a, b, d);
  }
};

// How far a thread turns keys: two pairs of its two tokens, which lie 8 rows apart.
template <FactorKind kKind>
struct alignas(16) KeyTurn {
  typename KeyNumbers<kKind>::Two cos[2], sin[2];
};

// Where a page of a block's lies in a ring of places, and how often its place was filled before: of
// the stages, and of the scores and turned queries.
struct RingPlace {
  int at = 0, phase = 0;
  __device__ void Advance(int places) {
    if (++at < places) return;
    at = 0;
    ++phase;
  }
};
// `index`: which of the block's pages it is.
__device__ inline RingPlace ScoresPlace(const DecodeParts& parts, int index) {
  if (parts.ring == 1) return {0, index};
  return {index % kRing, index / kRing};
}

}  // namespace latentd
