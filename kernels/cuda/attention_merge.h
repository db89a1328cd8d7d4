#pragma once

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/plan_view.h"

namespace latentd {

// A partial result is [2 + v dims]: the largest score (an exponent of 2), the sum of the weights
// and the weighted values as they are stored.
struct MergeArguments {
  PlanView plan;
  StepView step;
  const float* q = nullptr;  // [T, num_heads, head_dim]
  float* out = nullptr;      // [T, num_heads, head_dim]

  // Of splits: [tiles * rows_per_tile][num_heads][max_splits] results. Sequences of one row are
  // passed over if they are `decoded`.
  const float* partials = nullptr;
  int first_tile = 0;
  int tiles = 0;
  int rows_per_tile = 0;
  int max_splits = 0;

  // Of decode attention by `blocks` blocks: [places][queries of a unit] results (decode_work.cuh),
  // and of own pages, where there are any, [sequences][num_heads].
  bool decoded = false;
  const float* own_partials = nullptr;
  int blocks = 0;
  int late_blocks = 0;  // of them
};

// The outputs of the tiles' rows: exact sinks and splits merged, values brought through v_up.
void CudaMergeSplits(CudaDevice& device, const MergeArguments& arguments);
// The outputs of sequences of one row. `early`: the queue's last kernel is decode attention, so
// that the merge may begin before its end.
void CudaMergeDecoded(CudaDevice& device, const MergeArguments& arguments, bool early);

}  // namespace latentd
