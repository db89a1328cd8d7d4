#include <algorithm>
#include <cstdint>

#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/plain_ops.h"
#include "kernels/cuda/rows.cuh"

namespace latentd {
namespace {

// A block works on one row, with as many threads as the row's length says, whatever the batch: so
// an output row is a function of its input row alone. What a decode step waits for is memory and
// the fetching of instructions: one short code serves all lengths.

constexpr int kMostThreads = 1024;

// kCount numbers at once, aligned to all of them.
template <int kCount>
struct alignas(kCount * sizeof(float)) Numbers {
  float x[kCount];
};

// Each thread has its first kCount numbers of the row in registers, and their weights before it
// needs them; of long rows it reads the others again.
template <int kCount>
__global__ void __launch_bounds__(kMostThreads) NormRow(const __grid_constant__ NormParams p) {
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
    mean = BlockSum(mean) * share;
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
  const float inverse = rsqrtf(BlockSum(square) * share + p.epsilon);
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
