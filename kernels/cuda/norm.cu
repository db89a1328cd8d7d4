#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/plain_ops.h"

namespace latentd {
namespace {

// A block works on one row, with as many threads as the row's length says, whatever the batch: so
// an output row is a function of its input row alone. What a decode step waits for is memory and
// the fetching of instructions: one short code serves all lengths.

constexpr int kMostThreads = 1024;

__device__ __forceinline__ float WarpSum(float value) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(~0u, value, lane);
  return value;
}

// The sum over the block's threads, in one order, given to all of them. `warps`: used by this call
// alone.
__device__ __forceinline__ float SumOfBlock(float value, float (&warps)[kMostThreads / 32]) {
  const unsigned lane = threadIdx.x % 32;
  value = WarpSum(value);
  if (lane == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  return WarpSum(lane < blockDim.x / 32 ? warps[lane] : 0.0f);
}

// kCount numbers at once, aligned to all of them.
template <int kCount>
struct alignas(kCount * sizeof(float)) Numbers {
  float x[kCount];
};

// Each thread has its first kCount numbers of the row in registers, and their weights before it
// needs them; of long rows it reads the others again.
template <int kCount>
__global__ void __launch_bounds__(kMostThreads) NormRow(const __grid_constant__ NormParams p) {
  __shared__ float sums[kMostThreads / 32], squares[kMostThreads / 32];
  using Some = Numbers<kCount>;
  const int64_t row = blockIdx.x * int64_t{p.dims};
  const auto* in = reinterpret_cast<const Some*>(p.in + row);
  const auto* weight = reinterpret_cast<const Some*>(p.weight);
  const auto* bias = reinterpret_cast<const Some*>(p.bias);
  auto* out = reinterpret_cast<Some*>(p.out + row);
  const int first = static_cast<int>(threadIdx.x), step = static_cast<int>(blockDim.x);
  const int count = p.dims / kCount;
  Some held = {}, weights = {}, biases = {};
  if (first < count) {
    held = in[first];
    weights = weight[first];
    if (bias != nullptr) biases = bias[first];
  }
  const float share = 1.0f / static_cast<float>(p.dims);

  float mean = 0.0f;
  if (p.kind == NormKind::kLayer) {
    Some x = held;
#pragma unroll 1
    for (int i = first; i < count;) {
#pragma unroll
      for (const float value : x.x) mean += value;
      i += step;
      if (i < count) x = in[i];
    }
    mean = SumOfBlock(mean, sums) * share;
  }
  float square = 0.0f;
  Some x = held;
#pragma unroll 1
  for (int i = first; i < count;) {
#pragma unroll
    for (const float value : x.x) square += (value - mean) * (value - mean);
    i += step;
    if (i < count) x = in[i];
  }
  const float inverse = rsqrtf(SumOfBlock(square, squares) * share + p.epsilon);
#pragma unroll 1
  for (int i = first; i < count;) {
#pragma unroll
    for (int n = 0; n < kCount; ++n) {
      held.x[n] = (held.x[n] - mean) * inverse * weights.x[n] + biases.x[n];
    }
    out[i] = held;
    i += step;
    if (i >= count) break;
    held = in[i];
    weights = weight[i];
    if (bias != nullptr) biases = bias[i];
  }
}

}  // namespace

void CudaNorm(CudaDevice& device, const NormParams& p) {
  if (p.rows == 0) return;
  const auto together = reinterpret_cast<uintptr_t>(p.in) | reinterpret_cast<uintptr_t>(p.out) |
                        reinterpret_cast<uintptr_t>(p.weight) |
                        reinterpret_cast<uintptr_t>(p.bias) | p.dims * sizeof(float);
  const int count = together % (4 * sizeof(float)) == 0 ? 4 : 1;
  const int threads = std::min((p.dims / count + 31) / 32 * 32, kMostThreads);
  Launch(device, "norm", count == 4 ? NormRow<4> : NormRow<1>,
         {static_cast<unsigned>(p.rows), threads}, p);
}

}  // namespace latentd
