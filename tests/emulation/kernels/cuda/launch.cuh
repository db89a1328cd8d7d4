#pragma once

#include <type_traits>

#include "base/check.h"
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
inline int64_t threads_that_waited = 0;  // of the launch: kernels run one after another
inline void WaitForKernelsBefore() { ++threads_that_waited; }

template <typename... Parameters>
void Launch(CudaDevice& device, const char*, void (*kernel)(Parameters...),
            const LaunchShape& shape, std::type_identity_t<Parameters>... arguments) {
  emulation::Put([=] {
    threads_that_waited = 0;
    emulation::Run(shape.blocks, shape.threads, shape.shared_bytes, [&] { kernel(arguments...); });
    const int64_t threads =
        int64_t{shape.blocks.x} * shape.blocks.y * shape.blocks.z * shape.threads;
    LATENTD_CHECK(!shape.early || threads_that_waited == threads);
  });
}

inline uint8_t* SharedMemory() { return emulation::Shared(); }

}  // namespace latentd
