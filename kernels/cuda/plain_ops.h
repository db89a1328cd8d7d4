#pragma once

#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/step_memory.h"
#include "kernels/params.h"

namespace latentd {

// The ops that read each activation once or a few times: bound by memory, and small beside products
// and attention. They only put work into the device's queue.

void CudaNorm(CudaDevice& device, const NormParams& p);
void CudaActivation(CudaDevice& device, const ActivationParams& p);
void CudaGather(CudaDevice& device, StepMemory& step, const GatherParams& p);

// The tables have been brought to fp16.
void CudaEmbed(CudaDevice& device, StepMemory& step, const EmbedParams& p);

// cos and sin of p.table in the device's memory, [max_positions, pairs].
struct DeviceRopeTable {
  const float* cos = nullptr;
  const float* sin = nullptr;
};
void CudaRope(CudaDevice& device, StepMemory& step, const RopeParams& p,
              const DeviceRopeTable& table);

}  // namespace latentd
