#pragma once

#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/ops.h"

namespace latentd {

// The host's memory as if it were a device's own, of a given size.
class OwnMemoryDevice final : public Device {
 public:
  explicit OwnMemoryDevice(int64_t total) : total_(total) {}

  absl::StatusOr<void*> Allocate(int64_t bytes) override {
    if (used_ + bytes > total_) {
      return absl::ResourceExhaustedError(absl::StrCat(
          "cannot reserve ", bytes, " bytes, ", total_ - used_, " of ", total_, " are free"));
    }
    used_ += bytes;
    return host_->Allocate(bytes);
  }
  void Free(void* memory, int64_t bytes) override {
    used_ -= bytes;
    host_->Free(memory, bytes);
  }
  void CopyIn(void* to, const void* from, int64_t n) override { host_->CopyIn(to, from, n); }
  void CopyOut(void* to, const void* from, int64_t n) override { host_->CopyOut(to, from, n); }
  void Fill(void* to, uint8_t byte, int64_t bytes) override { host_->Fill(to, byte, bytes); }
  void Copy(void* to, const void* from, int64_t n) override { host_->Copy(to, from, n); }
  absl::StatusOr<std::optional<DeviceMemory>> Memory() override {
    return DeviceMemory{.total = total_, .used = used_};
  }
  bool reads_host_memory() const override { return true; }
  absl::Status Wait() override { return absl::OkStatus(); }

 private:
  const std::unique_ptr<Device> host_ = CreateHostDevice();
  const int64_t total_;
  int64_t used_ = 0;
};

// The reference on an OwnMemoryDevice.
class OwnMemoryOps final : public Ops {
 public:
  explicit OwnMemoryOps(int64_t total) : device_(total) {}
  std::string_view name() const override { return "own memory"; }
  Device& device() override { return device_; }
  absl::StatusOr<std::unique_ptr<Weight>> PrepareWeight(const TensorView& view) override {
    return ops_->PrepareWeight(view);
  }
  absl::StatusOr<std::unique_ptr<AttentionPlan>> PrepareAttention(
      const AttentionSpec& spec) override {
    return ops_->PrepareAttention(spec);
  }
  void BeginStep(const StepInputs& step) override { ops_->BeginStep(step); }
  void Embed(const EmbedParams& p) override { ops_->Embed(p); }
  void Norm(const NormParams& p) override { ops_->Norm(p); }
  void Matmul(const MatmulParams& p) override { ops_->Matmul(p); }
  void Rope(const RopeParams& p) override { ops_->Rope(p); }
  void Activation(const ActivationParams& p) override { ops_->Activation(p); }
  void Gather(const GatherParams& p) override { ops_->Gather(p); }
  void AppendCache(const AppendCacheParams& p) override { ops_->AppendCache(p); }
  void Attention(const AttentionParams& p) override { ops_->Attention(p); }
  void LogProbability(const LogProbabilityParams& p) override { ops_->LogProbability(p); }
  void Sample(const SampleParams& p) override { ops_->Sample(p); }

 private:
  OwnMemoryDevice device_;
  const std::unique_ptr<Ops> ops_ = CreateReferenceOps();
};

}  // namespace latentd
