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
// That share out the plan's pages of so many sequences.
int LatentDecodeBlocks(const CudaDevice& device, const PlanView& plan, int sequences);

// q: [T][num_heads][head_dim]. partials: DecodeFloats(plan, sequences, LatentDecodeBlocks()); of
// own pages [S][num_heads] results. `own_blocks`: 0, or those of the launch before, for own pages:
// the two run side by side.
void LaunchLatentDecode(CudaDevice& device, const PlanView& plan, const StepView& step,
                        const float* q, float* partials, int own_blocks);

}  // namespace latentd
