#pragma once

#include "absl/status/status.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/step_memory.h"
#include "kernels/params.h"

namespace latentd {

struct AttendArguments;

// Ops::Attention. Holds what the splits leave for their merge.
class CudaAttention {
 public:
  explicit CudaAttention(CudaDevice& device) : device_(device) {}

  // UNIMPLEMENTED when no kernel has registers or shared memory for such a plan on this device; the
  // message names both numbers.
  static absl::Status Check(CudaDevice& device, const PlanView& plan);

  void Run(StepMemory& step, const AttentionParams& p);

 private:
  // Rows of sequences that have one, by the kernel for them.
  void Decode(AttendArguments arguments, float* out);

  CudaDevice& device_;
  DeviceArray<float> partials_;
};

}  // namespace latentd
