#include "kernels/cuda/attention_merge.h"
#include "kernels/cuda/cache_tile.cuh"
#include "kernels/cuda/row_tile.cuh"

namespace latentd {
namespace {

constexpr int kThreads = 128;
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

__global__ void __launch_bounds__(kThreads) MergeSplits(const __grid_constant__ MergeArguments p) {
  extern __shared__ float values[];  // [v dims]
  __shared__ float sink_scores[kBlockTokens];
  const PlanView& plan = p.plan;
  const int local_row = blockIdx.x, head = blockIdx.y;
  const RowTile tile = TileOf(p.step, p.rows_per_tile, p.first_tile + local_row / p.rows_per_tile);
  const int row = local_row % p.rows_per_tile;
  if (row >= tile.rows) return;
  const int position = tile.position + row, v_dims = plan.coded.v.dims;
  const int kv_head = head / (plan.num_heads / plan.num_kv_heads);
  const int64_t at = int64_t{tile.first_row + row} * plan.num_heads + head;

  const float* q = p.q + at * plan.head_dim;
  const auto* sink_keys =
      plan.sinks > 0 ? reinterpret_cast<const __half*>(SinksOf(plan, p.step, tile.sequence))
                     : nullptr;
  SinkWeights sinks;
  if (plan.sinks > 0) sinks = WeighSinks(p, q, head, position, sink_keys, sink_scores);

  const int splits = min(p.max_splits, position / kSplitTokens + 1);
  const float* partials =
      p.partials + (int64_t{local_row} * plan.num_heads + head) * p.max_splits * (2 + v_dims);
  float largest = -INFINITY, sum = 0.0f;
  for (int s = 0; s < splits; ++s) {
    const float* split = partials + int64_t{s} * (2 + v_dims);
    if (split[1] == 0.0f) continue;  // nothing seen
    const float most = fmaxf(largest, split[0]);
    sum = sum * exp2f(largest - most) + split[1] * exp2f(split[0] - most);
    largest = most;
  }
  for (int d = threadIdx.x; d < v_dims; d += kThreads) {
    float value = 0.0f;
    for (int s = 0; s < splits; ++s) {
      const float* split = partials + int64_t{s} * (2 + v_dims);
      if (split[1] != 0.0f) value += split[2 + d] * exp2f(split[0] - largest);
    }
    values[d] = value;
  }
  __syncthreads();

  const float most = fmaxf(largest, sinks.largest);
  const float of_pages = sum == 0.0f ? 0.0f : exp2f(largest - most);
  const float of_sinks = sinks.sum == 0.0f ? 0.0f : exp2f(sinks.largest - most);
  const float inverse = 1.0f / (sum * of_pages + sinks.sum * of_sinks);
  const int first_sink = plan.window > 0 ? max(0, position - plan.window + 1) : 0;
  for (int i = threadIdx.x; i < plan.head_dim; i += kThreads) {
    float value = 0.0f;
    if (plan.v_up == nullptr) {
      value = values[i];
    } else {
      const float* up = plan.v_up + int64_t{kv_head} * v_dims * plan.head_dim + i;
      for (int d = 0; d < v_dims; ++d) value += values[d] * up[int64_t{d} * plan.head_dim];
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
}

}  // namespace

void CudaMergeSplits(CudaDevice& device, const MergeArguments& arguments) {
  const dim3 grid(arguments.tiles * arguments.rows_per_tile, arguments.plan.num_heads);
  const int bytes = arguments.plan.coded.v.dims * static_cast<int>(sizeof(float));
  MergeSplits<<<grid, kThreads, bytes, device.stream()>>>(arguments);
  device.Check(cudaGetLastError(), "merge of attention's splits");
}

}  // namespace latentd
