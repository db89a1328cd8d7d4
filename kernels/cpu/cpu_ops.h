#pragma once

#include <memory>
#include <string>

#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/weight_memory.h"
#include "kernels/ops.h"

namespace latentd {

// The ops on the processor: vectors of the best kind that it has, and a pool of threads. Made by
// CreateCpuOps.
class CpuOps final : public Ops {
 public:
  explicit CpuOps(int num_threads);

  std::string_view name() const override {
    return name_;
  }  // "cpu (AVX3_DL)": with the vectors' kind
  Device& device() override { return *device_; }

  absl::StatusOr<std::unique_ptr<Weight>> PrepareWeight(const TensorView& view) override;
  absl::StatusOr<std::unique_ptr<AttentionPlan>> PrepareAttention(
      const AttentionSpec& spec) override;

  void BeginStep(const StepInputs&) override {}
  void Embed(const EmbedParams& p) override;
  void Norm(const NormParams& p) override;
  void Matmul(const MatmulParams& p) override;
  void Rope(const RopeParams& p) override;
  void Activation(const ActivationParams& p) override;
  void Gather(const GatherParams& p) override;
  void AppendCache(const AppendCacheParams& p) override;
  void Attention(const AttentionParams& p) override;
  void LogProbability(const LogProbabilityParams& p) override;
  void Sample(const SampleParams& p) override;

 private:
  const std::string name_;
  const std::unique_ptr<Device> device_ = CreateHostDevice();
  ThreadPool pool_;
  Scratch scratch_;
  WeightMemory weight_memory_;
};

}  // namespace latentd
