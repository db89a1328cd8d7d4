#pragma once

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/plan_view.h"
#include "kernels/params.h"

namespace latentd {

// Decode attention on rebuilt keys by products of warpgroups (compute capability 9.0): for
// sequences with one row in the step, their coded pages, or their own ones (plan.decode.pages).
// decode_work.cuh says where results lie.

// Of plan.decode.pages, whose format is plan.coded. kNone where no kernel serves such a plan on
// this GPU.
DecodeUnits LatentDecodeUnits(const CudaDevice& device, const AttentionSpec& spec,
                              const PlanView& plan);
int LatentDecodeBlocks(const CudaDevice& device);  // that share out coded pages

// q: [T][num_heads][head_dim]. partials: DecodeFloats(plan, sequences, LatentDecodeBlocks()); of
// own pages [S][num_heads] results.
void LaunchLatentDecode(CudaDevice& device, const PlanView& plan, const StepView& step,
                        const float* q, float* partials);

}  // namespace latentd
