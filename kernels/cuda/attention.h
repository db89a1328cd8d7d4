#pragma once

#include "absl/status/status.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/step_memory.h"
#include "kernels/params.h"

namespace latentd {

class CudaAttentionPlan;

// Ops::Attention. Holds what the splits leave for their merge.
class CudaAttention {
 public:
  explicit CudaAttention(CudaDevice& device) : device_(device) {}

  // UNIMPLEMENTED when no kernel has registers or shared memory for such a plan on this device; the
  // message names both numbers.
  static absl::Status Check(CudaDevice& device, const PlanView& plan);

  void Run(StepMemory& step, const AttentionParams& p);

 private:
  // Rows of sequences that have one, by the kernels for them. q, out: as AttentionParams has them.
  void Decode(const CudaAttentionPlan& plan, const StepView& step, const float* q, float* out);
  // Own pages of such rows by the general kernel. partials: [sequences][num_heads] results.
  void AttendOwnPages(const PlanView& plan, const StepView& step, const float* q, float* partials);

  CudaDevice& device_;
  DeviceArray<float> partials_;
};

}  // namespace latentd
