#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "kernels/cpu/thread_pool.h"

namespace latentd {

// A weight of the model in fp32, and its bias.
struct DenseLinear {
  int64_t out = 0, in = 0;    // extents
  std::vector<float> weight;  // [out, in]
  std::vector<float> bias;    // [out], or empty
};

// A norm's weights in fp32.
struct DenseNorm {
  NormKind kind = NormKind::kRms;
  float epsilon = 0;
  std::vector<float> weight;  // [dims]
  std::vector<float> bias;    // [dims], or empty
};

// fp32 products on a pool of threads. Work is cut into tiles of fixed size, each computed by one
// thread, so results do not depend on the number of threads. While one exists, the linear algebra
// library itself runs on one thread. One thread at a time, one object at a time.
class DenseAlgebra {
 public:
  explicit DenseAlgebra(int threads);  // 0: one per core
  ~DenseAlgebra();
  DenseAlgebra(const DenseAlgebra&) = delete;
  DenseAlgebra& operator=(const DenseAlgebra&) = delete;

  ThreadPool& pool() { return pool_; }

  // Fills `out` [view.rows, view.cols] with what the view's numbers stand for.
  void Dequantize(const TensorView& view, std::vector<float>* out);

  // The canonical tensors `name`.weight and, where the model has it, `name`.bias, in the memory
  // that `linear` has. NOT_FOUND names a missing weight. A norm is of the model's kind.
  absl::Status Load(const Checkpoint& checkpoint, const std::string& name, DenseLinear* linear);
  absl::StatusOr<DenseNorm> LoadNorm(const Checkpoint& checkpoint, const std::string& name);

  // out [rows, linear.out] = x [rows, linear.in] weight^T + bias (+ out).
  void Product(const float* x, int64_t rows, const DenseLinear& linear, bool accumulate,
               float* out);

  // dx [rows, linear.in] = dout [rows, linear.out] weight (+ dx): the gradient by the input.
  void ProductBackward(const float* dout, int64_t rows, const DenseLinear& linear, bool accumulate,
                       float* dx);

  // NormRows and NormRowsBackward (float_rows.h) of all rows.
  void Norm(const DenseNorm& norm, const float* in, int64_t rows, float* out);
  void NormBackward(const DenseNorm& norm, const float* in, const float* dout, int64_t rows,
                    bool accumulate, float* dx);

 private:
  const int library_threads_;  // to be given back
  ThreadPool pool_;
};

}  // namespace latentd
