#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/compressor/matrix.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/device.h"

namespace latentd {

// A weight of the model in fp32 and its bias, as an algebra loads it. Destroyed before the algebra.
struct DenseLinear {
  int64_t out = 0, in = 0;        // extents
  const float* weight = nullptr;  // [out, in], in the memory of the algebra's device
  std::vector<float> bias;        // [out], or empty
  DeviceArray<float> memory;      // what `weight` points to, unless the algebra keeps it
};

// A norm's weights in fp32.
struct DenseNorm {
  NormKind kind = NormKind::kRms;
  float epsilon = 0;
  std::vector<float> weight;  // [dims]
  std::vector<float> bias;    // [dims], or empty
};

// A term of a sum of squares: the upper triangle of sum += x^T x, in double, x [rows, sum->cols].
struct Moment {
  const float* x = nullptr;
  int64_t rows = 0;
  Matrix* sum = nullptr;
};

// The compressor's large products, in fp32, where a device computes them. All but weights lies in
// the host's memory, and what is done to single rows is done there, on a pool of threads. Results
// do not depend on the number of threads. While one exists, the linear algebra library itself runs
// on one thread. One thread at a time, one object at a time.
class DenseAlgebra {
 public:
  virtual ~DenseAlgebra();
  DenseAlgebra(const DenseAlgebra&) = delete;
  DenseAlgebra& operator=(const DenseAlgebra&) = delete;

  ThreadPool& pool() { return pool_; }

  // The device's first error, INTERNAL, which stays: what was computed after it means nothing.
  virtual absl::Status status() { return absl::OkStatus(); }

  // The numbers that `view` stands for become linear->weight, in the memory that `linear` has, or
  // in memory where the algebra keeps them for the next time: so what lies behind a view does not
  // change. RESOURCE_EXHAUSTED for want of the device's memory.
  virtual absl::Status LoadWeight(const TensorView& view, DenseLinear* linear) = 0;

  // The canonical tensors `name`.weight and, where the model has it, `name`.bias. NOT_FOUND names a
  // missing weight. A norm is of the model's kind.
  absl::Status Load(const Checkpoint& checkpoint, const std::string& name, DenseLinear* linear);
  absl::StatusOr<DenseNorm> LoadNorm(const Checkpoint& checkpoint, const std::string& name);

  // out [rows, linear.out] = x [rows, linear.in] weight^T + bias (+ out).
  virtual void Product(const float* x, int64_t rows, const DenseLinear& linear, bool accumulate,
                       float* out) = 0;

  // dx [rows, linear.in] = dout [rows, linear.out] weight (+ dx): the gradient by the input.
  virtual void ProductBackward(const float* dout, int64_t rows, const DenseLinear& linear,
                               bool accumulate, float* dx) = 0;

  // gradient [out, in] = dout [rows, out]^T x [rows, in]: the gradient by a weight [out, in].
  virtual void WeightGradient(const float* dout, int64_t out, const float* x, int64_t in,
                              int64_t rows, float* gradient) = 0;

  virtual void AddMoments(absl::Span<const Moment> moments) = 0;

  // NormRows and NormRowsBackward (float_rows.h) of all rows.
  void Norm(const DenseNorm& norm, const float* in, int64_t rows, float* out);
  void NormBackward(const DenseNorm& norm, const float* in, const float* dout, int64_t rows,
                    bool accumulate, float* dx);

 protected:
  explicit DenseAlgebra(int threads);  // 0: one per core

 private:
  std::vector<float> Values(const TensorView& view);

  const int library_threads_;  // to be given back
  ThreadPool pool_;
};

// On the threads of the CPU; 0: one per core.
std::unique_ptr<DenseAlgebra> CreateCpuAlgebra(int threads);

// For --device: cuda:N computes on that GPU, all others on the CPU. Errors are those of CreateOps
// (engine/open_model.h).
absl::StatusOr<std::unique_ptr<DenseAlgebra>> CreateDenseAlgebra(const std::string& device,
                                                                 int threads);

}  // namespace latentd
