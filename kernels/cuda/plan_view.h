#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cache_layout.h"
#include "kernels/cuda/key_factors.h"
#include "kernels/params.h"

namespace latentd {

// What CUDA kernels know of a layer's attention and cache: plain numbers and pointers to device
// memory, given to a kernel by value. Made of an AttentionSpec and a CacheLayer at load.

inline constexpr int kMaxSegments = 8;  // of a plane; more are refused at load

struct SegmentView {
  Codec codec = Codec::kF16;
  int first_dim = 0;  // of the latent head's dims
  int dims = 0;
  int offset = 0;        // of its tiles, from its latent head's start in a block
  int scale_offset = 0;  // of its scales [64], zeros [64]
};

struct PlaneView {
  int latent_heads = 0;
  int dims = 0;        // of a latent head
  int head_bytes = 0;  // of a latent head in a block
  int num_segments = 0;
  SegmentView segments[kMaxSegments];
};

// A block of the cache, or an own page.
struct PageView {
  PlaneView k;  // from the block's start
  PlaneView v;
  int64_t v_offset = 0;         // of the V plane, from the block's start
  int64_t key_norm_offset = 0;  // of the first KV head's norms; 64 halves each
  int64_t bytes = 0;
};

// The dims of a head's pair j: those that RoPE turns, then neighbours of the rest.
struct Pair {
  int x, y;
};
__host__ __device__ constexpr Pair PairOf(int turned_pairs, int j) {
  if (j < turned_pairs) return {j, j + turned_pairs};
  return {2 * j, 2 * j + 1};
}

// What decode attention makes keys with: k_up in the order of key_factors.h, with one scale for
// both rows of a pair, and the turns of a page.
struct KeyFactors {
  const uint8_t* values = nullptr;  // [units][unit_bytes]
  const float* scales = nullptr;    // [num_kv_heads][head_dim / 2]
  // How far the keys of a page are turned beyond its start, alike for all pages (MakePageTurns).
  const uint16_t* page_turns = nullptr;
  int unit_bytes = 0;
};

// The kernel for sequences that have one row in a step.
enum class DecodeKernel : uint8_t {
  kNone,
  kDirect,   // queries meet what is cached (direct_decode.h)
  kLatents,  // keys are rebuilt (latent_decode.h)
};
// What it reads of a sequence: all pages that the row sees as codes, or the row's own page.
enum class DecodePages : uint8_t { kCoded, kOwn };
// What one block of it attends for: a unit, KV heads of one latent head.
struct DecodeUnits {
  DecodeKernel kernel = DecodeKernel::kNone;
  DecodePages pages = DecodePages::kCoded;
  FactorKind factors = FactorKind::kInt8;  // of kLatents
  int heads = 0;                           // KV heads of a unit
  int units = 0;
};

struct PlanView {
  AttentionPath path = AttentionPath::kFull;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  float softmax_scale = 0.0f;
  int window = 0;  // 0: none
  PageView coded;
  PageView own;  // where own_page
  bool own_page = false;
  int key_norms = 0;  // num_kv_heads, or 0
  int sinks = 0;
  int sink_dims = 0;
  int64_t sink_bytes = 0;      // of a seat: the own page comes after them
  int64_t sequence_bytes = 0;  // from seat to seat

  // Factors as AttentionSpec has them, in device memory; null where there are none.
  const float* k_up = nullptr;
  // k_up in fp16, in the order of the tensor cores' right operand (m16n8k16): [KV head][tile of 8
  // pairs][x, y][k.dims / 16][32 lanes][2] times two dims; lane l has row l / 4 and the dims 2 (l %
  // 4) and 8 above. Pairs as PairOf counts them, up to head_dim rounded up to 16; rows past
  // head_dim are 0. kReconstruct alone.
  const uint32_t* k_up_fragments = nullptr;
  DecodeUnits decode;
  KeyFactors key_factors;       // kLatents
  const float* v_up = nullptr;  // transposed: [KV head][v.dims][head_dim]
  const float* k_bias = nullptr;
  const float* v_bias = nullptr;
  const float* k_norm = nullptr;
  float k_norm_epsilon = 0.0f;
  const float* alibi_slopes = nullptr;
  int pairs = 0;               // of RoPE; 0 without
  const float* cos = nullptr;  // [max_positions, pairs]
  const float* sin = nullptr;
};

// Floats that decode attention by `blocks` blocks leaves for the merge: for each piece of its work
// (decode_work.cuh) a place of [queries of a unit][2 + v dims].
inline int64_t DecodeFloats(const PlanView& plan, int64_t sequences, int blocks) {
  const int64_t places = blocks + plan.decode.units * sequences;
  return places * (plan.num_heads / plan.decode.units) * (2 + plan.coded.v.dims);
}

// CacheView with its spans in device memory.
struct StepView {
  uint8_t* layer = nullptr;
  const int32_t* cu_q_lens = nullptr;
  const int32_t* kv_lens = nullptr;
  const int32_t* block_table = nullptr;
  int64_t max_blocks = 0;
  const int64_t* slots = nullptr;
  uint8_t* seats = nullptr;
  const int32_t* seat_of = nullptr;
  uint8_t* step_pages = nullptr;
  const int32_t* first_step_page = nullptr;
  int num_sequences = 0;
  int num_rows = 0;
};

}  // namespace latentd
