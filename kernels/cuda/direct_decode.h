#pragma once

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/plan_view.h"

namespace latentd {

// Decode attention whose queries meet what is cached as it is (kFull and, absorbed, kAbsorbed), on
// fp16 tensor cores: for sequences with one row in the step, their coded pages. decode_work.cuh
// says where results lie.

// kNone where the kernel does not serve such a plan on this GPU.
DecodeUnits DirectDecodeUnits(const CudaDevice& device, const PlanView& plan);
int DirectDecodeBlocks(const CudaDevice& device, const PlanView& plan);

// q: [T][num_heads][head_dim]; on kAbsorbed of AbsorbQueries, [S][num_heads][k dims].
// partials: DecodeFloats(plan, sequences, DirectDecodeBlocks()).
void LaunchDirectDecode(CudaDevice& device, const PlanView& plan, const StepView& step,
                        const float* q, float* partials);

}  // namespace latentd
