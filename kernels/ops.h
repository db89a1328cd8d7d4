#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/device.h"
#include "kernels/params.h"

namespace latentd {

// A weight matrix [rows, cols] (output x input values) in the order that a backend multiplies from;
// quantised weights keep their bits. Made by Ops::PrepareWeight, owned by the caller, immutable,
// and used with the Ops that made it, which outlives it.
class Weight {
 public:
  virtual ~Weight() = default;
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  DType dtype() const { return dtype_; }
  virtual int64_t bytes() const = 0;  // of the device's memory

 protected:
  explicit Weight(const TensorView& view)
      : rows_(view.rows), cols_(view.cols), dtype_(view.dtype) {}

 private:
  const int64_t rows_, cols_;
  const DType dtype_;
};

// One layer's attention, checked and with its factors in the order that a backend's kernels read.
// Made by Ops::PrepareAttention, owned by the caller, immutable, and used with the Ops that made
// it.
class AttentionPlan {
 public:
  virtual ~AttentionPlan() = default;
  const AttentionSpec& spec() const { return spec_; }  // its factor pointers are null
  // What serves steps of one row a sequence, in words, on a backend that has several kernels for
  // them; empty elsewhere.
  virtual std::string_view decode_kernel() const { return {}; }

 protected:
  explicit AttentionPlan(AttentionSpec spec) : spec_(std::move(spec)) {}
  AttentionSpec spec_;
};

// The ops of one device. Owned by a worker and called from its thread alone.
//
// The law: an output row is a function of its own input row (and of its sequence's cache, for
// Attention) alone, bit for bit, for any batch size, chunking, place in the batch and thread count.
// So a backend sums in a fixed order and picks no kernel by the batch whose bits differ from
// another's. Backends differ from one another by rounding only, within what params.h allows. Where
// a backend says so, it can be made without the law, for speed: bits then differ by rounding.
class Ops {
 public:
  virtual ~Ops() = default;
  virtual std::string_view name() const = 0;  // for logs and statistics: "cpu (AVX3_DL)"
  virtual Device& device() = 0;               // where the pointers of all ops point
  // The type that matrices are turned into at load: "bf16", or "as stored".
  virtual std::string_view weight_type() const { return "as stored"; }

  // Load time: everything that comes from a file is checked here. INVALID_ARGUMENT names the field
  // and both numbers; UNIMPLEMENTED when the backend has no kernel for the type, the path or the
  // size (nothing falls back in silence); RESOURCE_EXHAUSTED for want of memory.
  //
  // `view` must outlive the weight (a backend may keep pointing into the mapped file).
  virtual absl::StatusOr<std::unique_ptr<Weight>> PrepareWeight(const TensorView& view) = 0;
  // Copies the factors that `spec` points to, and may round them (AttentionSpec says how far).
  virtual absl::StatusOr<std::unique_ptr<AttentionPlan>> PrepareAttention(
      const AttentionSpec& spec) = 0;

  // Step time, in the order of the calls, BeginStep first. A device may still be at work when an op
  // returns; what an op writes to host memory is there. Arguments are the caller's promise, checked
  // by LATENTD_CHECK where that costs nothing. NaN and infinities in activations are no error: they
  // stay in their row until Sample says so.
  virtual void BeginStep(const StepInputs& step) = 0;
  // Calls `ops`, which calls ops that write to the device's memory alone, on the cache at `pool`,
  // in a step of one row a sequence. A backend may do again what an earlier call with this pool and
  // as many sequences did, instead: the caller promises that `ops` would call the same ops with the
  // same arguments but for what their spans hold, unless memory of the device was allocated since.
  virtual void Replay(const uint8_t* /*pool*/, absl::FunctionRef<void()> ops) { ops(); }
  virtual void Embed(const EmbedParams& p) = 0;
  virtual void Norm(const NormParams& p) = 0;
  virtual void Matmul(const MatmulParams& p) = 0;
  virtual void Rope(const RopeParams& p) = 0;
  virtual void Activation(const ActivationParams& p) = 0;
  virtual void Gather(const GatherParams& p) = 0;
  virtual void AppendCache(const AppendCacheParams& p) = 0;
  virtual void Attention(const AttentionParams& p) = 0;
  virtual void LogProbability(const LogProbabilityParams& p) = 0;
  virtual void Sample(const SampleParams& p) = 0;
};

// Plain fp32 loops, one thread: the definition of every op.
std::unique_ptr<Ops> CreateReferenceOps();

// SIMD chosen at run time, on a pool of `num_threads` threads (the caller's included).
// INVALID_ARGUMENT unless 1 <= num_threads <= 1024.
absl::StatusOr<std::unique_ptr<Ops>> CreateCpuOps(int num_threads);

// The checks that every backend's PrepareAttention starts with: dims, heads and planes agree,
// factors are there where the path needs them and finite. INVALID_ARGUMENT names the field and both
// numbers.
absl::Status ValidateAttention(const AttentionSpec& spec);

}  // namespace latentd
