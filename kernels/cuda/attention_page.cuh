#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/page_tile.cuh"
#include "kernels/cuda/row_tile.cuh"

namespace latentd {

// The steps of attention.cu's walk over a page, by a block of kThreads threads for one KV head
// (blockIdx.y).

inline constexpr int kWarps = 4;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kTileQueries = 16;                 // rows of a tensor core's tile
inline constexpr int kScoreStride = kBlockTokens + 4;   // floats
inline constexpr int kWeightStride = kBlockTokens + 8;  // halves
inline constexpr int kPadding = 8;        // halves behind a row, against bank conflicts
inline constexpr int kLanesPerQuery = 8;  // of the softmax

// Dims of what the queries meet, a multiple of 16: keys, behind which zeros may follow, or latents
// of the absorbed path.
__host__ __device__ inline int KeyDims(const PlanView& plan) {
  return plan.path == AttentionPath::kReconstruct ? (plan.head_dim + 15) / 16 * 16
                                                  : plan.coded.k.dims;
}

// The parts of a block's shared memory, in halves, but for the floats. `raw` are the next page's
// bytes of K and V, which come while this page is worked on.
struct SharedParts {
  __host__ __device__ SharedParts(const PlanView& plan, int query_tiles, bool fetches) {
    const bool rebuilt = plan.path == AttentionPath::kReconstruct;
    const int queries = query_tiles * kTileQueries, k = plan.coded.k.dims, v = plan.coded.v.dims;
    query_stride = KeyDims(plan) + kPadding;
    latent_stride = (k > v ? k : v) + kPadding;
    keys = queries * query_stride;
    latents = keys + (rebuilt ? kBlockTokens * query_stride : 0);
    weights = latents + kBlockTokens * latent_stride;
    raw = (weights + queries * kWeightStride + 7) / 8 * 8;
    floats = raw + (fetches ? (plan.coded.k.head_bytes + plan.coded.v.head_bytes) / 2 : 0);
    bytes = 2 * floats + 4 * (queries * kScoreStride + 3 * queries + kBlockTokens);
  }
  int query_stride, latent_stride;
  int keys, latents, weights, raw, floats;
  int bytes;
};

// Which rows a launch attends for, and what they read.
enum class AttendPart : uint8_t {
  kAll,
  kOthers,    // those of sequences that have several: decode attention does the rest
  kOwnPages,  // of sequences with one row, its own page alone
};

struct AttendArguments {
  PlanView plan;
  StepView step;
  const float* q;
  float* partials;     // [rows of the launch][num_heads][max_splits][2 + v dims]
  int first_tile = 0;  // of the launch
  int rows_per_tile = 0;
  int max_splits = 0;
  AttendPart part = AttendPart::kAll;
  bool fetches = false;  // the next page while one is worked on: where shared memory has room
};

// Of a query: its row of the tile and its head.
struct QueryPlace {
  int row, head;
};
__device__ inline QueryPlace PlaceOf(const PlanView& plan, int query) {
  const int per_kv = plan.num_heads / plan.num_kv_heads;
  return {query / per_kv, static_cast<int>(blockIdx.y) * per_kv + query % per_kv};
}

// The queries as the scores take them, with the softmax's scale for exponents of 2.
__device__ inline void LoadQueries(const AttendArguments& p, const RowTile& tile, int count,
                                   int padded, int stride, __half* queries) {
  const PlanView& plan = p.plan;
  const int dims = KeyDims(plan), head_dim = plan.head_dim;
  const float scale = plan.softmax_scale * kLog2E;
  for (int i = threadIdx.x; i < padded * dims; i += kThreads) {
    const int query = i / dims, d = i % dims;
    float value = 0.0f;
    if (query < count) {
      const auto [row, head] = PlaceOf(plan, query);
      const float* q = p.q + (int64_t{tile.first_row + row} * plan.num_heads + head) * head_dim;
      if (plan.path == AttentionPath::kAbsorbed) {
        const float* up = plan.k_up + int64_t{blockIdx.y} * head_dim * dims + d;
        for (int j = 0; j < head_dim; ++j) value += q[j] * up[int64_t{j} * dims];
      } else if (d < head_dim) {
        value = q[d];
      }
    }
    queries[query * stride + d] = __float2half_rn(value * scale);
  }
}

// keys [64 tokens][key dims] = RoPE(norm(k_up h + k_bias)) of the latents in shared memory. A warp
// takes every fourth tile of 8 pairs, for all tokens; the two dims of a pair meet in one thread.
__device__ inline void RebuildKeys(const PlanView& plan, const __half* latents, int latent_stride,
                                   const uint8_t* page, const PageView& format, int start,
                                   int key_stride, __half* keys) {
  constexpr int kRowTiles = kBlockTokens / 16;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int head = blockIdx.y, steps = format.k.dims / 16, pair_tiles = KeyDims(plan) / 16;
  const auto* fragments = reinterpret_cast<const uint2*>(plan.k_up_fragments) +
                          int64_t{head} * pair_tiles * 2 * steps * 32 + lane;
  const uint8_t* norms = page + format.key_norm_offset + 2 * head * kBlockTokens;
  for (int tile = warp; tile < pair_tiles; tile += kWarps) {
    FragmentD x[kRowTiles], y[kRowTiles];
    const uint2* of_x = fragments + int64_t{tile} * 2 * steps * 32;
    const uint2* of_y = of_x + steps * 32;
#pragma unroll 8
    for (int step = 0; step < steps; ++step) {
      const uint2 bx = of_x[step * 32], by = of_y[step * 32];
      for (int m = 0; m < kRowTiles; ++m) {
        const FragmentA a = LoadA(latents + 16 * m * latent_stride + 16 * step, latent_stride);
        MultiplyAdd(a, {{bx.x, bx.y}}, x[m]);
        MultiplyAdd(a, {{by.x, by.y}}, y[m]);
      }
    }
    for (int j = 0; j < 2; ++j) {
      const int pair = 8 * tile + lane % 4 * 2 + j;
      const auto [dim_x, dim_y] = PairOf(plan.pairs, pair);
      const bool turns = pair < plan.pairs, real = dim_y < plan.head_dim;
      float bias_x = 0.0f, bias_y = 0.0f, norm_x = 1.0f, norm_y = 1.0f;
      if (real && plan.k_bias != nullptr) {
        bias_x = plan.k_bias[head * plan.head_dim + dim_x];
        bias_y = plan.k_bias[head * plan.head_dim + dim_y];
      }
      if (real && plan.key_norms > 0) {
        norm_x = plan.k_norm[dim_x];
        norm_y = plan.k_norm[dim_y];
      }
      for (int m = 0; m < kRowTiles; ++m) {
        for (int half = 0; half < 2; ++half) {
          const int token = 16 * m + lane / 4 + 8 * half;
          float vx = x[m].x[2 * half + j] + bias_x, vy = y[m].x[2 * half + j] + bias_y;
          if (plan.key_norms > 0) {
            const float norm = HalfAt(norms + 2 * token);
            vx *= norm * norm_x;
            vy *= norm * norm_y;
          }
          if (turns) {
            const unsigned angle = unsigned(start + token) * plan.pairs + pair;
            const float cos = plan.cos[angle], sin = plan.sin[angle], turned = vx * cos - vy * sin;
            vy = vy * cos + vx * sin;
            vx = turned;
          }
          keys[token * key_stride + dim_x] = __float2half_rn(vx);
          keys[token * key_stride + dim_y] = __float2half_rn(vy);
        }
      }
    }
  }
}

// Copies a multiple of 16 bytes to shared memory, in the background, as one group of each thread's.
__device__ inline void Fetch(const uint8_t* from, int bytes, uint8_t* to) {
  const uint32_t at = SharedAddress(to);
  for (int i = 16 * threadIdx.x; i < bytes; i += 16 * kThreads) BeginCopy(at + i, from + i);
  EndCopies();
}

// scores [queries][64]: a warp has 16 tokens.
template <int kTiles>
__device__ inline void Scores(const __half* queries, const __half* keys, int query_stride,
                              int key_stride, int dims, float* scores) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  FragmentD sums[kTiles][2];
  for (int d = 0; d < dims; d += 16) {
    FragmentB b[2];
    for (int n = 0; n < 2; ++n) {
      b[n] = LoadColumns(keys + (16 * warp + 8 * n) * key_stride + d, key_stride);
    }
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const FragmentA a = LoadA(queries + 16 * m * query_stride + d, query_stride);
      for (int n = 0; n < 2; ++n) MultiplyAdd(a, b[n], sums[m][n]);
    }
  }
#pragma unroll
  for (int m = 0; m < kTiles; ++m) {
    for (int n = 0; n < 2; ++n) {
      float* to = scores + (16 * m + lane / 4) * kScoreStride + 16 * warp + 8 * n + lane % 4 * 2;
      to[0] = sums[m][n].x[0];
      to[1] = sums[m][n].x[1];
      to[8 * kScoreStride] = sums[m][n].x[2];
      to[8 * kScoreStride + 1] = sums[m][n].x[3];
    }
  }
}

// The state of the online softmax of each query, in shared memory.
struct SoftmaxState {
  float *largest, *sum, *correction;
};

// Which tokens of a page the rows of a pass see: `own` are the rows whose own page it is, else
// those after it.
struct PagePass {
  int start;  // position of the page
  bool own;
};

// Weights of the page's tokens and what the sums so far are to be multiplied with. A token that is
// `bad`, and a score that is not a number, make their row's sum not a number.
__device__ inline void Softmax(const PlanView& plan, const RowTile& tile, int count, int padded,
                               const PagePass& pass, const float* scores, const int* bad,
                               const SoftmaxState& state, __half* weights) {
  const int lane = threadIdx.x % kLanesPerQuery;
  constexpr int kTokens = kBlockTokens / kLanesPerQuery;
  for (int query = threadIdx.x / kLanesPerQuery; query < padded;
       query += kThreads / kLanesPerQuery) {
    const auto [row, head] = PlaceOf(plan, query);
    const int position = tile.position + row;
    const bool own = plan.own_page && position / kBlockTokens == pass.start / kBlockTokens;
    int first = 0, last = -1;  // in the page
    if (query < count && own == pass.own) {
      first = FirstVisible(plan, position) - pass.start;
      last = min(position - pass.start, kBlockTokens - 1);
    }
    const float slope =
        plan.alibi_slopes == nullptr || query >= count ? 0.0f : plan.alibi_slopes[head] * kLog2E;
    float score[kTokens], largest = -INFINITY;
    bool fault = false;
    for (int i = 0; i < kTokens; ++i) {
      const int token = lane + i * kLanesPerQuery;
      const bool seen = first <= token && token <= last;
      score[i] = -INFINITY;
      if (seen) {
        score[i] = scores[query * kScoreStride + token] +
                   slope * static_cast<float>(pass.start + token - position);
        fault |= !(fabsf(score[i]) < INFINITY) || bad[token] != 0;
      }
      largest = fmaxf(largest, score[i]);
    }
    for (int step = kLanesPerQuery / 2; step > 0; step /= 2) {
      largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, step));
      fault |= __shfl_xor_sync(0xffffffffu, fault ? 1 : 0, step) != 0;
    }
    const float before = state.largest[query];
    largest = fmaxf(before, largest);
    const bool none = largest == -INFINITY;  // so far
    float sum = 0.0f;
    for (int i = 0; i < kTokens; ++i) {
      const __half weight = __float2half_rn(none ? 0.0f : exp2f(score[i] - largest));
      weights[query * kWeightStride + lane + i * kLanesPerQuery] = weight;
      sum += __half2float(weight);
    }
    for (int step = kLanesPerQuery / 2; step > 0; step /= 2) {
      sum += __shfl_xor_sync(0xffffffffu, sum, step);
    }
    __syncwarp();
    if (lane == 0) {
      const float correction = none ? 1.0f : exp2f(before - largest);
      state.largest[query] = fault ? 0.0f : largest;
      state.sum[query] = fault ? NAN : state.sum[query] * correction + sum;
      state.correction[query] = correction;
    }
  }
}

}  // namespace latentd
