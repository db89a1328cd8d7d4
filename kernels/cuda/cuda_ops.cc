#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cuda/append_cache.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/plain_ops.h"
#include "kernels/cuda/sample.h"
#include "kernels/cuda/step_graphs.h"
#include "kernels/cuda/step_memory.h"

namespace latentd {
namespace {

// The ops on one GPU: each puts its work into the device's queue and returns. Sample and
// LogProbability alone wait, for their results.
class CudaOps final : public Ops {
 public:
  static absl::StatusOr<std::unique_ptr<Ops>> Create(int index, const CudaOptions& options) {
    std::unique_ptr<CudaOps> ops(new CudaOps(options));
    ASSIGN_OR_RETURN(ops->device_, CudaDevice::Create(index));
    ASSIGN_OR_RETURN(ops->matmul_, CudaMatmul::Create(*ops->device_, options.batch_invariant));
    ops->name_ = absl::StrCat("cuda:", index, " (", ops->device_->name(), ")");
    ops->step_ = std::make_unique<StepMemory>(*ops->device_);
    ops->attention_ = std::make_unique<CudaAttention>(*ops->device_);
    ops->sampler_ = std::make_unique<CudaSampler>(*ops->device_);
    ops->graphs_ = std::make_unique<StepGraphs>(*ops->device_);
    return ops;
  }

  std::string_view name() const override { return name_; }
  Device& device() override { return *device_; }
  std::string_view weight_type() const override { return "bf16"; }

  absl::StatusOr<std::unique_ptr<Weight>> PrepareWeight(const TensorView& view) override {
    return CudaWeight::Create(*device_, view);
  }

  absl::StatusOr<std::unique_ptr<AttentionPlan>> PrepareAttention(
      const AttentionSpec& spec) override {
    return PrepareAttention(spec, options_.batch_invariant);
  }
  absl::StatusOr<std::unique_ptr<AttentionPlan>> PrepareAttention(const AttentionSpec& spec,
                                                                  bool batch_invariant) {
    RETURN_IF_ERROR(ValidateAttention(spec));
    DeviceRopeTable rope;
    if (spec.rope != nullptr) {
      ASSIGN_OR_RETURN(rope, TableOf(*spec.rope));
    }
    return CudaAttentionPlan::Create(*device_, spec, rope, batch_invariant);
  }

  void BeginStep(const StepInputs& step) override {
    device_->MakeCurrent();
    step_->Begin(step);
    const int longest = step.kv_lens.empty() ? 0 : *std::ranges::max_element(step.kv_lens);
    kind_ = {.sequences = std::ssize(step.kv_lens),
             .max_blocks = step_->max_blocks(),
             .max_splits = (longest + kSplitTokens - 1) / kSplitTokens};
  }
  void Replay(const uint8_t* pool, absl::FunctionRef<void()> ops) override {
    kind_.pool = pool;
    graphs_->Run(kind_, ops);
  }
  void Embed(const EmbedParams& p) override { CudaEmbed(*device_, *step_, p); }
  void Norm(const NormParams& p) override { CudaNorm(*device_, p); }
  void Matmul(const MatmulParams& p) override { matmul_->Run(p); }
  void Activation(const ActivationParams& p) override { CudaActivation(*device_, p); }
  void Gather(const GatherParams& p) override { CudaGather(*device_, *step_, p); }
  void AppendCache(const AppendCacheParams& p) override { CudaAppendCache(*device_, *step_, p); }
  void Attention(const AttentionParams& p) override { attention_->Run(*step_, p); }

  void Rope(const RopeParams& p) override {
    const absl::StatusOr<DeviceRopeTable> table = TableOf(*p.table);
    if (!table.ok()) return device_->Fail(std::string(table.status().message()));
    CudaRope(*device_, *step_, p, *table);
  }

  void LogProbability(const LogProbabilityParams& p) override {
    sampler_->LogProbability(*step_, p);
  }
  void Sample(const SampleParams& p) override { sampler_->Sample(*step_, p); }

 private:
  struct RopeCopy {
    DeviceArray<float> cos, sin;
  };

  explicit CudaOps(const CudaOptions& options) : options_(options) {}

  // The table in the device's memory, where the first who asks for it brings it.
  absl::StatusOr<DeviceRopeTable> TableOf(const RopeTable& table) {
    RopeCopy& copy = rope_[&table];
    if (copy.sin.empty()) {
      // Whole pages: kernels turn a page's last tokens, too, though no row may see them.
      const int64_t pages = (table.max_positions + kBlockTokens - 1) / kBlockTokens;
      const auto bring = [&](const std::vector<float>& values,
                             DeviceArray<float>* to) -> absl::Status {
        ASSIGN_OR_RETURN(*to,
                         DeviceArray<float>::Create(*device_, pages * kBlockTokens * table.pairs));
        device_->CopyIn(to->data(), values.data(), std::ssize(values) * int64_t{sizeof(float)});
        return absl::OkStatus();
      };
      RETURN_IF_ERROR(bring(table.cos, &copy.cos));
      RETURN_IF_ERROR(bring(table.sin, &copy.sin));
    }
    return DeviceRopeTable{.cos = copy.cos.data(), .sin = copy.sin.data()};
  }

  const CudaOptions options_;
  std::string name_;
  std::unique_ptr<CudaDevice> device_;  // outlives all below
  std::unique_ptr<StepMemory> step_;
  std::unique_ptr<CudaMatmul> matmul_;
  std::unique_ptr<CudaAttention> attention_;
  std::unique_ptr<CudaSampler> sampler_;
  std::unique_ptr<StepGraphs> graphs_;
  std::map<const RopeTable*, RopeCopy> rope_;
  StepGraphs::Kind kind_;  // of the step
};

}  // namespace

absl::StatusOr<std::unique_ptr<Ops>> CreateCudaOps(int index, const CudaOptions& options) {
  return CudaOps::Create(index, options);
}

absl::StatusOr<std::unique_ptr<AttentionPlan>> PrepareCudaAttention(Ops& ops,
                                                                    const AttentionSpec& spec,
                                                                    bool batch_invariant) {
  return static_cast<CudaOps&>(ops).PrepareAttention(spec, batch_invariant);
}

}  // namespace latentd
