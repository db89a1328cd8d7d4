#pragma once

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/plan_view.h"

namespace latentd {

// Queries as the absorbed path takes them, k_up^T q, of the sequences with one row: from q
// [T][num_heads][head_dim] to absorbed [S][num_heads][k dims].
void AbsorbQueries(CudaDevice& device, const PlanView& plan, const StepView& step, const float* q,
                   float* absorbed);

}  // namespace latentd
