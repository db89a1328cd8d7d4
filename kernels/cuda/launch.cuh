#pragma once

#include <cstdint>
#include <type_traits>
#include <utility>

#include "kernels/cuda/cuda_device.h"

namespace latentd {

struct LaunchShape {
  dim3 blocks;
  int threads = 0;       // of a block
  int shared_bytes = 0;  // of a block, beside what the kernel declares
};

// Puts a kernel into the device's queue. The device notes an error as one of `what`.
template <typename... Parameters>
void Launch(CudaDevice& device, const char* what, void (*kernel)(Parameters...),
            const LaunchShape& shape, std::type_identity_t<Parameters>... arguments) {
  constexpr int kUnasked = 46 << 10;  // 48 KiB, what a kernel may declare itself not counted
  if (shape.shared_bytes > kUnasked) {
    device.Check(
        cudaFuncSetAttribute(reinterpret_cast<const void*>(kernel),
                             cudaFuncAttributeMaxDynamicSharedMemorySize, shape.shared_bytes),
        what);
  }
  kernel<<<shape.blocks, shape.threads, shape.shared_bytes, device.stream()>>>(
      std::move(arguments)...);
  device.Check(cudaGetLastError(), what);
}

// Where a block's shared_bytes begin.
__device__ __forceinline__ uint8_t* SharedMemory() {
  extern __shared__ __align__(1024) uint8_t memory[];
  return memory;
}

}  // namespace latentd
