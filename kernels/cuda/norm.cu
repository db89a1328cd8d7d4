#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/plain_ops.h"
#include "kernels/cuda/rows.cuh"

namespace latentd {
namespace {

// A thread holds every kRowThreads-th number of a row, kHeld at most; sums in fp32.
template <int kHeld>
__global__ void __launch_bounds__(kRowThreads) NormRow(NormParams p) {
  const float* in = p.in + blockIdx.x * int64_t{p.dims};
  float* out = p.out + blockIdx.x * int64_t{p.dims};
  float x[kHeld], sum = 0.0f;
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int i = h * kRowThreads + static_cast<int>(threadIdx.x);
    x[h] = i < p.dims ? in[i] : 0.0f;
    sum += x[h];
  }
  const float mean = p.kind == NormKind::kLayer ? BlockSum(sum) / static_cast<float>(p.dims) : 0.0f;
  float squares = 0.0f;
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int i = h * kRowThreads + static_cast<int>(threadIdx.x);
    if (i < p.dims) squares += (x[h] - mean) * (x[h] - mean);
  }
  const float inverse = rsqrtf(BlockSum(squares) / static_cast<float>(p.dims) + p.epsilon);
#pragma unroll
  for (int h = 0; h < kHeld; ++h) {
    const int i = h * kRowThreads + static_cast<int>(threadIdx.x);
    if (i >= p.dims) break;
    const float bias = p.bias == nullptr ? 0.0f : __ldg(p.bias + i);
    out[i] = (x[h] - mean) * inverse * __ldg(p.weight + i) + bias;
  }
}

// The longest rows are read three times.
__global__ void __launch_bounds__(kRowThreads) NormLongRow(NormParams p) {
  const float* in = p.in + blockIdx.x * int64_t{p.dims};
  float* out = p.out + blockIdx.x * int64_t{p.dims};
  float mean = 0.0f;
  if (p.kind == NormKind::kLayer) {
    for (int i = threadIdx.x; i < p.dims; i += kRowThreads) mean += in[i];
    mean = BlockSum(mean) / static_cast<float>(p.dims);
  }
  float squares = 0.0f;
  for (int i = threadIdx.x; i < p.dims; i += kRowThreads) {
    squares += (in[i] - mean) * (in[i] - mean);
  }
  const float inverse = rsqrtf(BlockSum(squares) / static_cast<float>(p.dims) + p.epsilon);
  for (int i = threadIdx.x; i < p.dims; i += kRowThreads) {
    const float bias = p.bias == nullptr ? 0.0f : p.bias[i];
    out[i] = (in[i] - mean) * inverse * p.weight[i] + bias;
  }
}

}  // namespace

void CudaNorm(CudaDevice& device, const NormParams& p) {
  if (p.rows == 0) return;
  auto* kernel = NormLongRow;
  if (p.dims <= 4 * kRowThreads) {
    kernel = NormRow<4>;
  } else if (p.dims <= 32 * kRowThreads) {
    kernel = NormRow<32>;
  }
  Launch(device, "norm", kernel, {static_cast<unsigned>(p.rows), kRowThreads}, p);
}

}  // namespace latentd
