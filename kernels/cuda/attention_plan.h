#pragma once

#include <memory>
#include <string_view>

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
  // README.md has them: "int8 factors" and "fp16 factors" of latent_decode, "direct" of
  // direct_decode, "general".
  std::string_view decode_kernel() const override;
  const PlanView& view() const { return view_; }
  // As decode attention reads own pages: `coded` is their format. decode.kernel is kNone where it
  // does not.
  const PlanView& own_view() const { return own_view_; }

 private:
  explicit CudaAttentionPlan(const AttentionSpec& spec) : AttentionPlan(spec) {}

  struct DeviceKeyFactors {
    DeviceArray<uint8_t> values;
    DeviceArray<float> scales;
    DeviceArray<uint16_t> page_turns;
  };

  absl::Status AddDecode(CudaDevice& device, const AttentionSpec& spec);
  // Of the view's units, held by `memory`.
  static absl::Status AddKeyFactors(CudaDevice& device, const AttentionSpec& spec,
                                    DeviceKeyFactors* memory, PlanView* view);

  DeviceArray<float> k_up_, v_up_, k_bias_, v_bias_, k_norm_, alibi_slopes_;
  DeviceArray<uint32_t> k_up_fragments_;
  DeviceKeyFactors key_factors_, own_key_factors_;
  PlanView view_, own_view_;
};
}  // namespace latentd
