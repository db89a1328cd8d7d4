#include "kernels/cuda/absorb_queries.h"

#include "kernels/cuda/decode_work.cuh"
#include "kernels/cuda/launch.cuh"

namespace latentd {
namespace {

constexpr int kBlockThreads = 128;
constexpr int kAbsorbDims = 32;  // of a block

__global__ void __launch_bounds__(kBlockThreads)
    Absorb(const __grid_constant__ PlanView plan, const __grid_constant__ StepView step,
           const float* q, float* absorbed) {
  __shared__ float parts[kBlockThreads / 32][kAbsorbDims];
  const int sequence = blockIdx.x, head = blockIdx.y;
  if (!IsDecoded(step, sequence)) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, dims = plan.coded.k.dims;
  const int d = static_cast<int>(blockIdx.z) * kAbsorbDims + lane;
  const int kv_head = head / (plan.num_heads / plan.num_kv_heads);
  const int64_t at = int64_t{step.cu_q_lens[sequence]} * plan.num_heads + head;
  const float* row = q + at * plan.head_dim;
  const float* up = plan.k_up + int64_t{kv_head} * plan.head_dim * dims + d;
  float sum = 0.0f;
  if (d < dims) {
#pragma unroll 8
    for (int i = warp; i < plan.head_dim; i += kBlockThreads / 32) {
      sum += row[i] * up[int64_t{i} * dims];
    }
  }
  parts[warp][lane] = sum;
  __syncthreads();
  if (warp != 0 || d >= dims) return;
  sum = 0.0f;
  for (const auto& part : parts) sum += part[lane];
  absorbed[(int64_t{sequence} * plan.num_heads + head) * dims + d] = sum;
}

}  // namespace

void AbsorbQueries(CudaDevice& device, const PlanView& plan, const StepView& step, const float* q,
                   float* absorbed) {
  const dim3 grid(step.num_sequences, plan.num_heads,
                  (plan.coded.k.dims + kAbsorbDims - 1) / kAbsorbDims);
  Launch(device, "absorbed queries", Absorb, {grid, kBlockThreads}, plan, step, q, absorbed);
}

}  // namespace latentd
