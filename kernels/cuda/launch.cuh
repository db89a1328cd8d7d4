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
  // The kernel may begin before those before it have ended: until WaitForKernelsBefore, which all
  // its threads call, it touches nothing that they write, and it writes nothing.
  // For that the code must be of the GPU's own generation: the build has no PTX
  // (LatentdCuda.cmake).
  bool early = false;
};

// Lets a kernel that is launched early begin as soon as all blocks have come here or ended.
__device__ inline void LetNextKernelBegin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;\n" ::: "memory");
#endif
}
// Waits for the end of the kernels before. What they wrote is then read past the L1 cache (__ldcg),
// where neighbours on the multiprocessor may have left older values.
__device__ inline void WaitForKernelsBefore() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;\n" ::: "memory");
#endif
}

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
  cudaLaunchAttribute early{};
  early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  early.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = shape.blocks;
  config.blockDim = dim3(static_cast<unsigned>(shape.threads));
  config.dynamicSmemBytes = static_cast<size_t>(shape.shared_bytes);
  config.stream = device.stream();
  config.attrs = &early;
  config.numAttrs = shape.early && device.compute_capability() >= 90 ? 1 : 0;
  device.Check(cudaLaunchKernelEx(&config, kernel, std::move(arguments)...), what);
}

// Where a block's shared_bytes begin.
__device__ __forceinline__ uint8_t* SharedMemory() {
  extern __shared__ __align__(1024) uint8_t memory[];
  return memory;
}

}  // namespace latentd
