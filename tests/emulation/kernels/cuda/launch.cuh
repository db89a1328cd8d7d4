#pragma once

#include <type_traits>

#include "kernels/cuda/cuda_device.h"
#include "tests/emulation/block.h"
#include "tests/emulation/queue.h"

namespace latentd {

struct LaunchShape {
  dim3 blocks;
  int threads = 0;
  int shared_bytes = 0;
  bool early = false;
};
inline void LetNextKernelBegin() {}
inline void WaitForKernelsBefore() {}

template <typename... Parameters>
void Launch(CudaDevice& device, const char*, void (*kernel)(Parameters...),
            const LaunchShape& shape, std::type_identity_t<Parameters>... arguments) {
  emulation::Put([=] {
    emulation::Run(shape.blocks, shape.threads, shape.shared_bytes, [&] { kernel(arguments...); });
  });
}

inline uint8_t* SharedMemory() { return emulation::Shared(); }

}  // namespace latentd
