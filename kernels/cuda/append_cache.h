#pragma once

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/step_memory.h"
#include "kernels/params.h"

namespace latentd {

// Ops::AppendCache: the same bytes as the reference writes, but for key norms, which may differ by
// one unit in their last place.
void CudaAppendCache(CudaDevice& device, StepMemory& step, const AppendCacheParams& p);

}  // namespace latentd
