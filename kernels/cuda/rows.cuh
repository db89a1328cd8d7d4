#pragma once

#include <cstdint>

namespace latentd {

// A block works on one row of activations, with this many threads, whatever the batch: so an output
// row is a function of its input row alone.
inline constexpr int kRowThreads = 256;

// The sum of `value` over the block's threads, in one order, given to all of them. Every thread
// calls it.
__device__ inline float BlockSum(float value) {
  __shared__ float warps[kRowThreads / 32];
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffffu, value, lane);
  __syncthreads();  // the last call's sum has been read
  if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
  for (const float part : warps) sum += part;
  return sum;
}

}  // namespace latentd
