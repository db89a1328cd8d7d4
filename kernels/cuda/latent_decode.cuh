#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/decode_sums.cuh"
#include "kernels/cuda/decode_work.cuh"
#include "kernels/cuda/hopper.cuh"
#include "kernels/cuda/integer_factors.h"

namespace latentd {

// Decode attention on latents of at most 4 bits whose keys are rebuilt (kReconstruct), for Hopper.
//
// A block attends for one unit: KV heads of one latent head, whose factors k_up stay in its shared
// memory as int8. Two warpgroups rebuild keys and leave scores, each of every second page; two more
// together fetch pages, turn the queries back by the angle of each page's start (so that keys are
// turned by their offset in the page alone), and take scores and values to the result.
//
//   codes -> int8 (exact; registers) x k_up -> int32 -> bf16 keys, turned -> x queries -> scores
//   scores -> weights -> x token scales -> fp16 x codes of V (exact fp16) -> sums, fp32

inline constexpr int kGroupThreads = 128;  // of a warpgroup
inline constexpr int kKeyGroups = 2;
inline constexpr int kValueThreads = 2 * kGroupThreads;
inline constexpr int kDecodeThreads = kKeyGroups * kGroupThreads + kValueThreads;
inline constexpr int kKeyRegisters = 152, kValueRegisters = 104;  // of a thread; 256 for two
inline constexpr int kRing = 3;       // scores and turned queries: how far keys are ahead of values
inline constexpr int kMaxStages = 6;  // of fetched pages
inline constexpr int kMaxSteps = 8;   // products of 32 dims of K
inline constexpr int kMaxPasses = 4;  // products of 128 columns of a unit

struct LatentDecodeArguments {
  PlanView plan;
  StepView step;
  const float* q = nullptr;
  float* partials = nullptr;  // [places][queries of a unit][2 + v dims]
  int stages = 0;
  int num_key_tiles = 0;
  int num_value_blocks = 0;
  KeyTile key_tiles[2 * kMaxSteps];
  ValueBlock value_blocks[kMaxValueBlocks];
};

struct DecodeBarriers {
  PhaseBarrier fetched[kMaxStages];
  PhaseBarrier factors[kMaxPasses];
  PhaseBarrier turned[kRing];
  PhaseBarrier scored[kRing];
};

// Where a page of a block's lies among the stages, and how often its stage was filled before.
struct StagePlace {
  int stage = 0, phase = 0;
  __device__ void Advance(int stages) {
    if (++stage < stages) return;
    stage = 0;
    ++phase;
  }
};

// The parts of a block's shared memory, in bytes.
struct DecodeParts {
  __host__ __device__ DecodeParts(const PlanView& plan, int stages, int sequences) {
    per_kv = plan.num_heads / plan.num_kv_heads;
    kv_heads_of_latent = plan.num_kv_heads / plan.coded.k.latent_heads;
    queries = plan.decode.heads * per_kv;
    passes = (plan.decode.heads * plan.head_dim + kFactorColumns - 1) / kFactorColumns;
    query_stride = 2 * plan.head_dim + 32;
    k_bytes = plan.coded.k.head_bytes;
    v_bytes = plan.coded.v.head_bytes;
    norm_bytes = plan.key_norms > 0 ? 2 * kBlockTokens * plan.decode.heads : 0;
    stage_bytes = (k_bytes + v_bytes + norm_bytes + 127) / 128 * 128;
    int at = plan.k_int8.unit_bytes;
    const auto take = [&at](int bytes) {
      const int begin = at;
      at += (bytes + 127) / 128 * 128;
      return begin;
    };
    stage = take(stages * stage_bytes);
    turned = take(kRing * queries * query_stride);
    query = take(queries * plan.head_dim * 4);
    scores = take(kRing * queries * kScoreStride * 4);
    query_scales = take(queries * 4);
    sums =
        take(SumsParts(kValueThreads / 32, QueryTiles(queries), plan.coded.v.num_segments).bytes);
    multipliers = take(2 * plan.coded.k.num_segments * kBlockTokens);
    prefix = take(4 * (sequences + 1));
    barriers = take(sizeof(DecodeBarriers));
    bytes = at;
  }
  int per_kv, kv_heads_of_latent, queries, passes, query_stride;
  int k_bytes, v_bytes, norm_bytes, stage_bytes;
  int stage, turned, query, scores, query_scales, sums, multipliers, prefix, barriers;
  int bytes;
};

}  // namespace latentd
