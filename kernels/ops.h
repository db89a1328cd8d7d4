#pragma once

#include <cstdint>
#include <memory>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/params.h"

namespace latentd {

// A weight matrix [rows, cols] in the order that a backend multiplies from; quantised weights keep
// their bits. Immutable.
class Weight {
 public:
  virtual ~Weight() = default;
  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  DType dtype() const { return dtype_; }
  virtual int64_t bytes() const = 0;  // memory it takes

 protected:
  Weight(const TensorView& view) : rows_(view.rows), cols_(view.cols), dtype_(view.dtype) {}

 private:
  const int64_t rows_, cols_;
  const DType dtype_;
};

// One layer's attention, checked and with its factors in the order that a backend's kernels read.
// Immutable.
class AttentionPlan {
 public:
  virtual ~AttentionPlan() = default;
  const AttentionSpec& spec() const { return spec_; }  // its factor pointers are null

 protected:
  explicit AttentionPlan(AttentionSpec spec) : spec_(std::move(spec)) {}
  AttentionSpec spec_;
};

// The ops of one device. Owned by a worker and called from its thread alone. Every op's output row
// depends on its own input row alone: the same bits for any batch size, chunking and thread count.
class Ops {
 public:
  virtual ~Ops() = default;
  virtual std::string_view name() const = 0;

  // Load time. `view` must outlive the weight (a backend may keep pointing into the mapped file).
  // UNIMPLEMENTED when the backend has no kernel for the type or path: nothing falls back in
  // silence.
  virtual absl::StatusOr<std::unique_ptr<Weight>> PrepareWeight(const TensorView& view) = 0;
  virtual absl::StatusOr<std::unique_ptr<AttentionPlan>> PrepareAttention(
      const AttentionSpec& spec) = 0;

  // Step time. Arguments are the caller's promise, checked by LATENTD_CHECK.
  virtual void Embed(const EmbedParams& p) = 0;
  virtual void Norm(const NormParams& p) = 0;
  virtual void Matmul(const MatmulParams& p) = 0;
  virtual void Rope(const RopeParams& p) = 0;
  virtual void Activation(const ActivationParams& p) = 0;
  virtual void AppendCache(const AppendCacheParams& p) = 0;
  virtual void Attention(const AttentionParams& p) = 0;
  virtual void Sample(const SampleParams& p) = 0;
};

// Plain fp32 loops, one thread: the definition of every op.
std::unique_ptr<Ops> CreateReferenceOps();

// SIMD chosen at run time, on a pool of `num_threads` threads (the caller's included).
// INVALID_ARGUMENT unless 1 <= num_threads <= 1024.
absl::StatusOr<std::unique_ptr<Ops>> CreateCpuOps(int num_threads);

// The checks that every backend's PrepareAttention starts with: dims, heads and planes agree,
// factors are there where the path needs them. INVALID_ARGUMENT names the field and both numbers.
absl::Status ValidateAttention(const AttentionSpec& spec);

}  // namespace latentd
