#include "kernels/cuda/latent_decode_kernel.cuh"

namespace latentd {

absl::Span<const LatentKernelSet> Fp16LatentKernels() {
  static constexpr LatentKernelSet kKernels[] = {
      LatentKernels<FactorKind::kFp16, 128, ValueCodes::kAll>(),
      LatentKernels<FactorKind::kFp16, 256, ValueCodes::kAll>(),
      LatentKernels<FactorKind::kFp16, 512, ValueCodes::kAll>()};
  return kKernels;
}

}  // namespace latentd
