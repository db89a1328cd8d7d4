#include "kernels/cuda/latent_decode_kernel.cuh"

namespace latentd {

absl::Span<const LatentKernelSet> Int8LatentKernels() {
  static constexpr LatentKernelSet kKernels[] = {
      LatentKernels<FactorKind::kInt8, 128, ValueCodes::kFewBits>(),
      LatentKernels<FactorKind::kInt8, 256, ValueCodes::kFewBits>(),
      LatentKernels<FactorKind::kInt8, 512, ValueCodes::kFewBits>(),
      LatentKernels<FactorKind::kInt8, 256, ValueCodes::kUpTo8Bits>(),
      LatentKernels<FactorKind::kInt8, 512, ValueCodes::kUpTo8Bits>()};
  return kKernels;
}

}  // namespace latentd
