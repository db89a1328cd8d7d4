#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/plain_ops.h"
#include "kernels/cuda/plan_view.h"
#include "kernels/ops.h"

namespace latentd {

// A layer's attention with its factors in the device's memory.
class CudaAttentionPlan final : public AttentionPlan {
 public:
  // `spec` has passed ValidateAttention. `rope`: of spec.rope, empty without. `batch_invariant`: as
  // CudaOptions says. UNIMPLEMENTED for
  // more than kMaxSegments segments of a plane, more dims than a kernel has registers or shared
  // memory for, or an odd head_dim; the message names both numbers. RESOURCE_EXHAUSTED names the
  // bytes.
  static absl::StatusOr<std::unique_ptr<CudaAttentionPlan>> Create(CudaDevice& device,
                                                                   const AttentionSpec& spec,
                                                                   const DeviceRopeTable& rope,
                                                                   bool batch_invariant);
  const PlanView& view() const { return view_; }

 private:
  explicit CudaAttentionPlan(const AttentionSpec& spec) : AttentionPlan(spec) {}

  absl::Status AddDecode(CudaDevice& device, const AttentionSpec& spec);

  DeviceArray<float> k_up_, v_up_, k_bias_, v_bias_, k_norm_, alibi_slopes_;
  DeviceArray<uint32_t> k_up_fragments_;
  DeviceArray<uint8_t> key_factors_;
  DeviceArray<float> key_factor_scales_;
  DeviceArray<uint16_t> page_turns_;
  PlanView view_;
};
}  // namespace latentd
