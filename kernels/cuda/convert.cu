#include <cuda_bf16.h>

#include "kernels/cuda/convert.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"
#include "kernels/ops.h"

namespace latentd {
namespace {

constexpr int kThreads = 256;

// Four values a thread; `count` is a multiple of 4.
__global__ void __launch_bounds__(kThreads)
    ToBFloat16(const float4* in, int64_t count, uint2* out) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const float4 x = in[i];
  const __nv_bfloat162 low = __floats2bfloat162_rn(x.x, x.y),
                       high = __floats2bfloat162_rn(x.z, x.w);
  out[i] = {*reinterpret_cast<const unsigned*>(&low), *reinterpret_cast<const unsigned*>(&high)};
}

__global__ void __launch_bounds__(kRowThreads)
    StartFromBias(const float* bias, int64_t n, int64_t stride, bool add, float* out) {
  float* row = out + blockIdx.x * stride;
  for (int64_t i = threadIdx.x; i < n; i += kRowThreads) row[i] = bias[i] + (add ? row[i] : 0.0f);
}

}  // namespace

uint16_t ToBFloat16(float value) {
  uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof(bits));
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16) | 0x40;  // NaN
  return static_cast<uint16_t>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

void CudaToBFloat16(CudaDevice& device, const float* in, int64_t count, uint16_t* out) {
  if (count == 0) return;
  const int64_t fours = count / 4;
  const auto blocks = static_cast<unsigned>((fours + kThreads - 1) / kThreads);
  Launch(device, "rounding of activations", ToBFloat16, {blocks, kThreads},
         reinterpret_cast<const float4*>(in), fours, reinterpret_cast<uint2*>(out));
}

void CudaStartFromBias(CudaDevice& device, const Product& product, int64_t rows) {
  Launch(device, "bias", StartFromBias, {static_cast<unsigned>(rows), kRowThreads}, product.bias,
         product.weight->rows(), product.out_stride, product.accumulate, product.out);
}

}  // namespace latentd
