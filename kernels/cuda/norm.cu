#include "kernels/cuda/plain_ops.h"
#include "kernels/cuda/rows.cuh"

namespace latentd {
namespace {

// A row is read from the cache three times at most (mean, squares, output); sums in fp32.
__global__ void __launch_bounds__(kRowThreads) NormRow(NormParams p) {
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
  NormRow<<<static_cast<unsigned>(p.rows), kRowThreads, 0, device.stream()>>>(p);
  device.Check(cudaGetLastError(), "norm");
}

}  // namespace latentd
