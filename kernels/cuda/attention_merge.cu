#include <algorithm>

#include "kernels/cuda/attention_merge.h"
#include "kernels/cuda/cache_tile.cuh"
#include "kernels/cuda/decode_work.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_tile.cuh"

namespace latentd {
namespace {

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;

// What the exact sinks give: their largest score, and each one's weight under it.
struct SinkWeights {
  float largest = -INFINITY, sum = 0.0f;
};

// scores [64] in shared memory; every thread gets the same.
__device__ SinkWeights WeighSinks(const MergeArguments& p, const float* q, int head, int position,
                                  const __half* keys, float* scores) {
  const PlanView& plan = p.plan;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int kv_head = head / (plan.num_heads / plan.num_kv_heads);
  const int first = plan.window > 0 ? max(0, position - plan.window + 1) : 0;
  const int end = min(plan.sinks, position + 1);
  const float slope = plan.alibi_slopes == nullptr ? 0.0f : plan.alibi_slopes[head] * kLog2E;
  for (int n = warp; n < plan.sinks; n += kWarps) {
    const __half* key = keys + n * plan.sink_dims + kv_head * plan.head_dim;
    float sum = 0.0f;
    if (first <= n && n < end) {
      for (int i = lane; i < plan.head_dim; i += 32) sum += q[i] * __half2float(key[i]);
    }
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
    if (lane == 0) {
      scores[n] = first <= n && n < end ? sum * (plan.softmax_scale * kLog2E) +
                                              slope * static_cast<float>(n - position)
                                        : -INFINITY;
    }
  }
  __syncthreads();
  SinkWeights weights;
  for (int n = 0; n < plan.sinks; ++n) weights.largest = fmaxf(weights.largest, scores[n]);
  for (int n = first; n < end; ++n) weights.sum += exp2f(scores[n] - weights.largest);
  return weights;
}

// The partial results of one query.
struct Partials {
  const float* first = nullptr;
  int64_t stride = 0;
  int count = 0;
  const float* own = nullptr;  // one more, or null

  __device__ int all() const { return count + (own != nullptr ? 1 : 0); }
  __device__ const float* At(int i) const { return i < count ? first + i * stride : own; }
};

// Over the block's threads, given to all of them; they also wait for one another.
__device__ float BlockMax(float value) {
  __shared__ float warps[kWarps];
  for (int step = 16; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, step));
  }
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  for (const float part : warps) value = fmaxf(value, part);
  return value;
}
__device__ float BlockSum(float value) {
  __shared__ float warps[kWarps];
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(0xffffffffu, value, step);
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  value = 0.0f;
  for (const float part : warps) value += part;
  return value;
}

constexpr int kSliceDims = 32;  // of a head's output, at once
__host__ __device__ inline int Slices(const PlanView& plan) {
  return (plan.head_dim + kSliceDims - 1) / kSliceDims;
}

// A block makes every gridDim.z-th slice of the output of one row and head. Its shared memory: a
// weight of each partial result, and [v dims] weighted values of each group of threads (Bytes).
__device__ void Merge(const MergeArguments& p, int sequence, int row, int position, int head,
                      const Partials& partials, float* memory) {
  __shared__ float sink_scores[kBlockTokens];
  __shared__ float parts[kWarps][kSliceDims];
  const PlanView& plan = p.plan;
  const int v_dims = plan.coded.v.dims, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int kv_head = head / (plan.num_heads / plan.num_kv_heads);
  const int64_t at = int64_t{row} * plan.num_heads + head;
  const auto* sink_keys =
      plan.sinks > 0 ? reinterpret_cast<const __half*>(SinksOf(plan, p.step, sequence)) : nullptr;
  SinkWeights sinks;
  if (plan.sinks > 0) {
    sinks = WeighSinks(p, p.q + at * plan.head_dim, head, position, sink_keys, sink_scores);
  }

  const int count = partials.all();
  float* weights = memory;
  float* values = memory + count;
  float largest = -INFINITY;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const float* partial = partials.At(i);
    if (partial[1] != 0.0f) largest = fmaxf(largest, partial[0]);  // 0: nothing seen
  }
  largest = BlockMax(largest);
  float sum = 0.0f;
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const float* partial = partials.At(i);
    weights[i] = partial[1] != 0.0f ? exp2f(partial[0] - largest) : 0.0f;
    sum += partial[1] * weights[i];
  }
  sum = BlockSum(sum);
  // Two dims a thread; where there are threads left, groups of them share the partial results.
  const int pairs = v_dims / 2, groups = max(1, kThreads / pairs), group = threadIdx.x / pairs;
  for (int pair = threadIdx.x % pairs; pair < pairs && group < groups; pair += kThreads) {
    float2 value = {0.0f, 0.0f};
#pragma unroll 8
    for (int i = group; i < count; i += groups) {
      const float2 two = *reinterpret_cast<const float2*>(partials.At(i) + 2 + 2 * pair);
      value.x += two.x * weights[i];
      value.y += two.y * weights[i];
    }
    values[group * v_dims + 2 * pair] = value.x;
    values[group * v_dims + 2 * pair + 1] = value.y;
  }
  __syncthreads();
  for (int d = threadIdx.x; d < v_dims && groups > 1; d += kThreads) {
    float value = values[d];
    for (int g = 1; g < groups; ++g) value += values[g * v_dims + d];
    values[d] = value;
  }
  __syncthreads();

  const float most = fmaxf(largest, sinks.largest);
  const float of_pages = sum == 0.0f ? 0.0f : exp2f(largest - most);
  const float of_sinks = sinks.sum == 0.0f ? 0.0f : exp2f(sinks.largest - most);
  const float inverse = 1.0f / (sum * of_pages + sinks.sum * of_sinks);
  const int first_sink = plan.window > 0 ? max(0, position - plan.window + 1) : 0;
  for (int slice = blockIdx.z; slice < Slices(plan); slice += static_cast<int>(gridDim.z)) {
    const int i = slice * kSliceDims + lane;
    float value = 0.0f;
    if (plan.v_up != nullptr && i < plan.head_dim) {
      const float* up = plan.v_up + int64_t{kv_head} * v_dims * plan.head_dim + i;
#pragma unroll 16
      for (int d = warp; d < v_dims; d += kWarps)
        value += values[d] * up[int64_t{d} * plan.head_dim];
    }
    parts[warp][lane] = value;
    __syncthreads();
    if (warp == 0 && i < plan.head_dim) {
      if (plan.v_up == nullptr) {
        value = values[i];
      } else {
        for (int w = 1; w < kWarps; ++w) value += parts[w][lane];
        if (plan.v_bias != nullptr) value += sum * plan.v_bias[kv_head * plan.head_dim + i];
      }
      float sink_value = 0.0f;
      for (int n = first_sink; n < min(plan.sinks, position + 1); ++n) {
        const __half* of_token =
            sink_keys + (plan.sinks + n) * plan.sink_dims + kv_head * plan.head_dim;
        sink_value += exp2f(sink_scores[n] - sinks.largest) * __half2float(of_token[i]);
      }
      p.out[at * plan.head_dim + i] = (value * of_pages + sink_value * of_sinks) * inverse;
    }
    __syncthreads();  // the parts were read
  }
}

__global__ void __launch_bounds__(kThreads) MergeSplits(const __grid_constant__ MergeArguments p) {
  auto* memory = reinterpret_cast<float*>(SharedMemory());
  const int local_row = blockIdx.x, head = blockIdx.y;
  const RowTile tile = TileOf(p.step, p.rows_per_tile, p.first_tile + local_row / p.rows_per_tile);
  const int row = local_row % p.rows_per_tile;
  if (row >= tile.rows || (p.decoded && IsDecoded(p.step, tile.sequence))) return;
  const int position = tile.position + row;
  Partials partials;
  partials.stride = 2 + p.plan.coded.v.dims;
  partials.first =
      p.partials + (int64_t{local_row} * p.plan.num_heads + head) * p.max_splits * partials.stride;
  partials.count = min(p.max_splits, position / kSplitTokens + 1);
  Merge(p, tile.sequence, tile.first_row + row, position, head, partials, memory);
}

__global__ void __launch_bounds__(kThreads) MergeDecoded(const __grid_constant__ MergeArguments p) {
  auto* memory = reinterpret_cast<float*>(SharedMemory());
  __shared__ int before, all;
  const PlanView& plan = p.plan;
  const int sequence = blockIdx.x, head = blockIdx.y;
  if (!IsDecoded(p.step, sequence)) return;
  if (threadIdx.x == 0) before = all = 0;
  __syncthreads();
  for (int i = threadIdx.x; i < p.step.num_sequences; i += kThreads) {
    const int count = CodedPages(plan, p.step, i).count;
    if (i < sequence) atomicAdd(&before, count);
    atomicAdd(&all, count);
  }
  __syncthreads();
  const int queries = plan.num_heads / plan.decode.units, unit = head / queries;
  const int v_size = 2 + plan.coded.v.dims, pages = CodedPages(plan, p.step, sequence).count;
  const DecodeLine line(p.step.num_sequences, all, plan.decode.units, p.blocks);
  const int begin = unit * line.pages + before;
  const int first_block = begin / line.share, last_block = (begin + pages - 1) / line.share;
  Partials partials;
  partials.stride = int64_t{queries} * v_size;
  partials.first = p.partials + line.Place(first_block, unit, sequence) * partials.stride +
                   int64_t{head % queries} * v_size;
  partials.count = pages > 0 ? last_block - first_block + 1 : 0;
  if (plan.own_page) {
    partials.own = p.own_partials + (int64_t{sequence} * plan.num_heads + head) * v_size;
  }
  Merge(p, sequence, p.step.cu_q_lens[sequence], p.step.kv_lens[sequence] - 1, head, partials,
        memory);
}

// Of a block's shared memory.
int Bytes(int partials, int v_dims) {
  return static_cast<int>(sizeof(float)) * (partials + std::max(v_dims, 2 * kThreads));
}
// How many blocks share a row's head: more than one where there are few of them, in order of
// slices.
int Shares(const CudaDevice& device, const PlanView& plan, int64_t rows) {
  const int slices = Slices(plan);
  return rows * plan.num_heads * slices <= 4 * device.multiprocessors() ? slices : 1;
}

}  // namespace

void CudaMergeSplits(CudaDevice& device, const MergeArguments& arguments) {
  const PlanView& plan = arguments.plan;
  const int rows = arguments.tiles * arguments.rows_per_tile;
  const dim3 grid(rows, plan.num_heads, Shares(device, plan, rows));
  const int bytes = Bytes(arguments.max_splits, plan.coded.v.dims);
  Launch(device, "merge of attention's splits", MergeSplits, {grid, kThreads, bytes}, arguments);
}

void CudaMergeDecoded(CudaDevice& device, const MergeArguments& arguments) {
  const PlanView& plan = arguments.plan;
  const int rows = arguments.step.num_sequences;
  const dim3 grid(rows, plan.num_heads, Shares(device, plan, rows));
  const int bytes = Bytes(arguments.blocks + 1, plan.coded.v.dims);
  Launch(device, "merge of decode attention", MergeDecoded, {grid, kThreads, bytes}, arguments);
}

}  // namespace latentd
