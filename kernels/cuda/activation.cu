#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/plain_ops.h"

namespace latentd {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) Activate(ActivationParams p, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const float x = p.gate[i];
  if (p.kind == ActivationKind::kSiluGated) {
    p.out[i] = x / (1.0f + expf(-x)) * p.up[i];
  } else {
    const float inner = 0.7978845608f * (x + 0.044715f * x * x * x);  // sqrt(2 / pi)
    p.out[i] = 0.5f * x * (1.0f + tanhf(inner));
  }
}

}  // namespace

void CudaActivation(CudaDevice& device, const ActivationParams& p) {
  const int64_t count = p.rows * p.dims;
  if (count == 0) return;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  Launch(device, "activation", Activate, {blocks, kThreads}, p, count);
}

}  // namespace latentd
