#include <algorithm>

#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/attention_merge.h"
#include "kernels/cuda/cache_tile.cuh"
#include "kernels/cuda/decode_work.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/row_tile.cuh"

namespace latentd {
namespace {

// In a decode step a block runs its code once, from memory: loops stay loops, and what is done
// twice is a function that is called.

constexpr int kThreads = 512;
constexpr int kWarps = kThreads / 32;
constexpr int kSliceDims = 32;  // of a head's output, at once

// Of the model: query heads of a KV head, and of a unit of decode attention.
struct HeadCounts {
  unsigned per_kv_head = 1, per_unit = 1;
};

// Rows that are summed up: the partial results of one query, or v_up.
struct Rows {
  const float* first = nullptr;
  int stride = 0;
  int count = 0;
  const float* last = nullptr;  // one more, or null
  int column = 0;               // the first that is summed

  __device__ int all() const { return count + (last != nullptr ? 1 : 0); }
};

// A block's memory. Entries are the partial results, then the exact sinks.
struct MergeMemory {
  float* parts;    // [groups of threads][columns]
  float* values;   // [v dims]
  float* scores;   // [entries]: the largest of each
  float* sums;     // [entries]: of weights under that
  float* weights;  // [entries]: of each under the largest of all

  static __host__ __device__ int PartFloats(int v_dims) {
    return v_dims > kThreads ? v_dims : kThreads;
  }
  static int Bytes(int entries, int v_dims) {
    return static_cast<int>(sizeof(float)) * (PartFloats(v_dims) + v_dims + 3 * entries);
  }
  __device__ MergeMemory(int entries, int v_dims)
      : parts(reinterpret_cast<float*>(SharedMemory())),
        values(parts + PartFloats(v_dims)),
        scores(values + v_dims),
        sums(scores + entries),
        weights(sums + entries) {}
};

// sums[c] = the sum over the rows of weights[i] * row i[column + c], in one order whatever else the
// block or the grid does. The block's threads wait for one another. All but the rows is in shared
// memory.
__device__ __forceinline__ void SumRows(const Rows& rows, const float* weights, int columns,
                                        float* parts, float* sums) {
  constexpr int kAtOnce = 12;
  const int thread = static_cast<int>(threadIdx.x);
  // A group of threads, of a power of 2, takes every groups-th row.
  const int bits = min(max(32 - __clz(columns - 1), 5), 9);
  const int groups = kThreads >> bits, group = thread >> bits;
#pragma unroll 1
  for (int column = thread & ((1 << bits) - 1); column < columns; column += kThreads) {
    const int at = rows.column + column;
    float sum = 0.0f;
    if (rows.last != nullptr && group == 0) sum = __ldcg(rows.last + at) * weights[rows.count];
#pragma unroll 1
    for (int first = group; first < rows.count; first += kAtOnce * groups) {
      float x[kAtOnce];
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {
        const int row = first + n * groups;
        x[n] = row < rows.count ? __ldcg(rows.first + row * rows.stride + at) : 0.0f;
      }
#pragma unroll
      for (int n = 0; n < kAtOnce; ++n) {  // weights past the last are multiplied by 0
        sum += x[n] * weights[min(first + n * groups, rows.count - 1)];
      }
    }
    parts[group * columns + column] = sum;
  }
  __syncthreads();
#pragma unroll 1
  for (int column = thread; column < columns; column += kThreads) {
    float sum = 0.0f;
#pragma unroll 4
    for (int g = 0; g < groups; ++g) sum += parts[g * columns + column];
    sums[column] = sum;
  }
  __syncthreads();
}

// Exact sinks, and which of them the row sees.
struct Sinks {
  const __half* keys = nullptr;  // [sinks][sink dims] from the KV head on
  const __half* values = nullptr;
  int first = 0, end = 0;

  __device__ Sinks(const MergeArguments& p, int sequence, int position, int kv_head) {
    const PlanView& plan = p.plan;
    if (plan.sinks == 0) return;
    keys =
        reinterpret_cast<const __half*>(SinksOf(plan, p.step, sequence)) + kv_head * plan.head_dim;
    values = keys + plan.sinks * plan.sink_dims;
    first = plan.window > 0 ? max(0, position - plan.window + 1) : 0;
    end = min(plan.sinks, position + 1);
  }
};

// scores [sinks], by all warps.
__device__ void ScoreSinks(const PlanView& plan, const Sinks& sinks, const float* q, int head,
                           int position, float* scores) {
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll 1
  for (int n = warp; n < plan.sinks; n += kWarps) {
    float score = -INFINITY;
    if (sinks.first <= n && n < sinks.end) {
      const __half* key = sinks.keys + n * plan.sink_dims;
      score = 0.0f;
#pragma unroll 1
      for (int first = lane; first < plan.head_dim; first += 128) {
#pragma unroll
        for (int i = first; i < first + 128; i += 32) {
          if (i < plan.head_dim) score += __ldcg(q + i) * __half2float(key[i]);
        }
      }
#pragma unroll 1
      for (int step = 16; step > 0; step /= 2) score += __shfl_xor_sync(~0u, score, step);
      const float slope = plan.alibi_slopes == nullptr ? 0.0f : plan.alibi_slopes[head];
      score = kLog2E * (score * plan.softmax_scale + slope * static_cast<float>(n - position));
    }
    if (lane == 0) scores[n] = score;
  }
}

__host__ __device__ inline int Slices(const PlanView& plan) {
  return (plan.head_dim + kSliceDims - 1) / kSliceDims;
}

// A block makes every gridDim.z-th slice of the output of one row and head.
__device__ void Merge(const MergeArguments& p, unsigned per_kv_head, int sequence, int row,
                      int position, int head, const Rows& partials) {
  __shared__ float sink_parts[kWarps][kSliceDims], of_slice[kSliceDims];
  __shared__ float inverse, page_weights;
  const PlanView& plan = p.plan;
  const int thread = static_cast<int>(threadIdx.x), warp = thread / 32, lane = thread % 32;
  const int v_dims = plan.coded.v.dims, head_dim = plan.head_dim;
  const bool has_up = plan.v_up != nullptr;
  const int kv_head = static_cast<int>(static_cast<unsigned>(head) / per_kv_head);
  const int64_t at = (int64_t{row} * plan.num_heads + head) * head_dim;
  const int count = partials.all(), entries = count + plan.sinks;
  const MergeMemory memory(entries, v_dims);
  const Sinks sinks(p, sequence, position, kv_head);
  const Rows up = {plan.v_up + kv_head * v_dims * head_dim, head_dim, v_dims};
  if (has_up) {  // on its way while weights are found
#pragma unroll 1
    for (int d = thread; d < v_dims; d += kThreads) {
      Prefetch(up.first + d * head_dim + blockIdx.z * kSliceDims);
    }
  }
  WaitForKernelsBefore();  // of attention

#pragma unroll 1
  for (int i = thread; i < count; i += kThreads) {
    const float* partial =
        (i < partials.count ? partials.first + i * partials.stride : partials.last) - 2;
    const float score = __ldcg(partial), sum = __ldcg(partial + 1);
    memory.scores[i] = sum != 0.0f ? score : -INFINITY;  // 0: nothing seen
    memory.sums[i] = sum;
  }
  if (plan.sinks > 0) {
    ScoreSinks(plan, sinks, p.q + at, head, position, memory.scores + count);
    if (thread < plan.sinks) memory.sums[count + thread] = 1.0f;
  }
  __syncthreads();
  float largest = -INFINITY;
#pragma unroll 1
  for (int i = lane; i < entries; i += 32) largest = fmaxf(largest, memory.scores[i]);
#pragma unroll 1
  for (int step = 16; step > 0; step /= 2) {
    largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
  }
#pragma unroll 1
  for (int i = thread; i < entries; i += kThreads) {
    memory.weights[i] = exp2f(memory.scores[i] - largest);
  }
  __syncthreads();
  if (warp == kWarps - 1) {  // which has the fewest rows
    float all = 0.0f, pages = 0.0f;
#pragma unroll 1
    for (int i = lane; i < entries; i += 32) {
      const float sum = memory.weights[i] * memory.sums[i];
      all += sum;
      if (i < count) pages += sum;
    }
#pragma unroll 1
    for (int step = 16; step > 0; step /= 2) {
      all += __shfl_xor_sync(~0u, all, step);
      pages += __shfl_xor_sync(~0u, pages, step);
    }
    inverse = 1.0f / all;
    page_weights = pages;
  }

  // First the values as they are stored, where they go through v_up: the step before the slices.
  const int slices = Slices(plan), first_slice = static_cast<int>(blockIdx.z);
#pragma unroll 1
  for (int slice = has_up ? -1 : first_slice; slice < slices;
       slice = slice < 0 ? first_slice : slice + static_cast<int>(gridDim.z)) {
    const bool output = slice >= 0;
    const int from = output ? slice * kSliceDims : 0, i = from + lane;
    if (output && warp < plan.sinks) {
      float sum = 0.0f;
#pragma unroll 1
      for (int n = warp; n < sinks.end; n += kWarps) {
        if (n < sinks.first || i >= head_dim) continue;
        sum += memory.weights[count + n] * __half2float(sinks.values[n * plan.sink_dims + i]);
      }
      sink_parts[warp][lane] = sum;
    }
    Rows rows = output && has_up ? up : partials;
    rows.column = from;
    SumRows(rows, output && has_up ? memory.values : memory.weights,
            output ? min(kSliceDims, head_dim - from) : v_dims, memory.parts,
            output ? of_slice : memory.values);
    if (output && warp == 0 && i < head_dim) {
      float value = of_slice[lane];
      if (has_up && plan.v_bias != nullptr) {
        value += page_weights * plan.v_bias[kv_head * head_dim + i];
      }
#pragma unroll 1
      for (int n = 0; n < min(plan.sinks, kWarps); ++n) value += sink_parts[n][lane];
      p.out[at + i] = value * inverse;
    }
    __syncthreads();  // sums were read
  }
}

__global__ void __launch_bounds__(kThreads, 2)
    MergeSplits(const __grid_constant__ MergeArguments p, const HeadCounts heads) {
  const int local_row = blockIdx.x, head = blockIdx.y;
  const RowTile tile = TileOf(p.step, p.rows_per_tile, p.first_tile + local_row / p.rows_per_tile);
  const int row = local_row % p.rows_per_tile;
  if (row >= tile.rows || (p.decoded && IsDecoded(p.step, tile.sequence))) return;
  const int position = tile.position + row;
  Rows partials;
  partials.stride = 2 + p.plan.coded.v.dims;
  partials.first = p.partials + 2 +
                   (int64_t{local_row} * p.plan.num_heads + head) * p.max_splits * partials.stride;
  partials.count = min(p.max_splits, position / kSplitTokens + 1);
  Merge(p, heads.per_kv_head, tile.sequence, tile.first_row + row, position, head, partials);
}

__global__ void __launch_bounds__(kThreads, 2)
    MergeDecoded(const __grid_constant__ MergeArguments p, const HeadCounts heads) {
  LetNextKernelBegin();  // most often a product, which has weights to fetch
  const PlanView& plan = p.plan;
  const int sequence = blockIdx.x, head = blockIdx.y;
  if (!IsDecoded(p.step, sequence)) return WaitForKernelsBefore();
  int before = 0, all = 0, pages = 0;  // coded pages: of earlier sequences, of all, of this one
#pragma unroll 1
  for (int i = threadIdx.x % 32; i < p.step.num_sequences; i += 32) {
    const int count = CodedPages(plan, p.step, i).count;
    if (i < sequence) before += count;
    if (i == sequence) pages = count;
    all += count;
  }
  before = __reduce_add_sync(~0u, before);
  pages = __reduce_add_sync(~0u, pages);
  all = __reduce_add_sync(~0u, all);
  const unsigned unit = static_cast<unsigned>(head) / heads.per_unit;
  const unsigned query = static_cast<unsigned>(head) - unit * heads.per_unit;
  const int v_size = 2 + plan.coded.v.dims;
  const DecodeLine line(p.step.num_sequences, all, plan.decode.units, p.blocks, p.late_blocks);
  const unsigned begin = unit * line.pages + before;
  const int first_block = line.BlockOf(begin);
  const int place = line.Place(first_block, static_cast<int>(unit), sequence);
  Rows partials;  // values stand behind the score and the sum
  partials.stride = static_cast<int>(heads.per_unit) * v_size;
  partials.first = p.partials + 2 + int64_t{place} * partials.stride + query * v_size;
  partials.count = pages > 0 ? line.BlockOf(begin + pages - 1) - first_block + 1 : 0;
  if (plan.own_page) {
    partials.last = p.own_partials + 2 + int64_t{sequence * plan.num_heads + head} * v_size;
  }
  Merge(p, heads.per_kv_head, sequence, p.step.cu_q_lens[sequence], p.step.kv_lens[sequence] - 1,
        head, partials);
}

// How many blocks share a row's head: more than one where there are few of them, in order of
// slices.
int Shares(const CudaDevice& device, const PlanView& plan, int64_t rows) {
  const int slices = Slices(plan);
  return rows * plan.num_heads * slices <= 4 * device.multiprocessors() ? slices : 1;
}

void LaunchMerge(CudaDevice& device, const char* what, void (*kernel)(MergeArguments, HeadCounts),
                 const MergeArguments& arguments, int rows, int partials, bool early) {
  const PlanView& plan = arguments.plan;
  const dim3 grid(rows, plan.num_heads, Shares(device, plan, rows));
  const int bytes = MergeMemory::Bytes(partials + plan.sinks, plan.coded.v.dims);
  const auto heads = static_cast<unsigned>(plan.num_heads);
  Launch(device, what, kernel,
         {.blocks = grid, .threads = kThreads, .shared_bytes = bytes, .early = early}, arguments,
         {.per_kv_head = heads / plan.num_kv_heads,
          .per_unit = heads / std::max(1, plan.decode.units)});
}

}  // namespace

void CudaMergeSplits(CudaDevice& device, const MergeArguments& arguments) {
  LaunchMerge(device, "merge of attention's splits", MergeSplits, arguments,
              arguments.tiles * arguments.rows_per_tile, arguments.max_splits, /*early=*/false);
}

void CudaMergeDecoded(CudaDevice& device, const MergeArguments& arguments, bool early) {
  LaunchMerge(device, "merge of decode attention", MergeDecoded, arguments,
              arguments.step.num_sequences, arguments.blocks + 1, early);
}

}  // namespace latentd
