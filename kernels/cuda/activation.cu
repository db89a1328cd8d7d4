#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/plain_ops.h"

namespace latentd {
namespace {

constexpr int kThreads = 256;

__global__ void __launch_bounds__(kThreads) Activate(ActivationParams p, int64_t count) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= count) return;
  const float up = p.kind == ActivationKind::kSiluGated ? p.up[i] : 0.0f;
  p.out[i] = Activated(p.kind, p.gate[i], up);
}

}  // namespace

void CudaActivation(CudaDevice& device, const ActivationParams& p) {
  const int64_t count = p.rows * p.dims;
  if (count == 0) return;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  Launch(device, "activation", Activate, {blocks, kThreads}, p, count);
}

}  // namespace latentd
