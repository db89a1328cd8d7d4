#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/step_memory.h"
#include "kernels/params.h"

namespace latentd {

// Ops::Sample and Ops::LogProbability: each brings its arguments to the device in one copy, has a
// block of threads for every row, waits, and fetches all results in one copy. Holds the logits that
// penalties have changed.
class CudaSampler {
 public:
  explicit CudaSampler(CudaDevice& device) : device_(device) {}

  void Sample(StepMemory& step, const SampleParams& p);
  void LogProbability(StepMemory& step, const LogProbabilityParams& p);

 private:
  CudaDevice& device_;
  DeviceArray<uint64_t> scratch_;
};

}  // namespace latentd
