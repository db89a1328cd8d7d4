#pragma once

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/plan_view.h"

namespace latentd {

struct MergeArguments {
  PlanView plan;
  StepView step;
  const float* q = nullptr;  // [T, num_heads, head_dim]
  // [tiles * rows_per_tile][num_heads][max_splits][2 + v dims]: of each split the largest score (an
  // exponent of 2), the sum of the weights and the weighted values as they are stored.
  const float* partials = nullptr;
  int first_tile = 0;
  int tiles = 0;
  int rows_per_tile = 0;
  int max_splits = 0;
  float* out = nullptr;  // [T, num_heads, head_dim]
};

// The outputs of the tiles' rows: exact sinks and splits merged, values brought through v_up.
void CudaMergeSplits(CudaDevice& device, const MergeArguments& arguments);

}  // namespace latentd
