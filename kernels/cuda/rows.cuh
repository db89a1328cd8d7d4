#pragma once

#include <cstdint>

namespace latentd {

// A block works on one row of activations, with this many threads, whatever the batch: so an output
// row is a function of its input row alone.
inline constexpr int kRowThreads = 256;

// The sum of `value` over a warp's lanes, given to all of them.
__device__ __forceinline__ float WarpSum(float value) {
#pragma unroll
  for (int lane = 16; lane > 0; lane /= 2) value += __shfl_xor_sync(0xffffffffu, value, lane);
  return value;
}

// The sum of `value` over the block's threads, which are whole warps, in one order, given to all of
// them. Every thread calls it.
__device__ __forceinline__ float BlockSum(float value) {
  __shared__ float warps[32];
  const unsigned lane = threadIdx.x % 32;
  value = WarpSum(value);
  __syncthreads();  // the last call's sum has been read
  if (lane == 0) warps[threadIdx.x / 32] = value;
  __syncthreads();
  return WarpSum(lane < blockDim.x / 32 ? warps[lane] : 0.0f);
}

}  // namespace latentd
