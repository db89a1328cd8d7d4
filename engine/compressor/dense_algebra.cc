#include "engine/compressor/dense_algebra.h"

#include <cblas.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "engine/compressor/float_rows.h"
#if LATENTD_CUDA
#include "engine/compressor/cuda_algebra.h"
#endif

namespace latentd {
namespace {

RowNorm RowNormOf(const DenseNorm& norm) {
  return {.kind = norm.kind,
          .epsilon = norm.epsilon,
          .dims = static_cast<int64_t>(norm.weight.size()),
          .weight = norm.weight.data(),
          .bias = norm.bias.empty() ? nullptr : norm.bias.data()};
}

absl::StatusOr<TensorView> FindWeight(const Checkpoint& checkpoint, const std::string& name) {
  const std::string weight_name = absl::StrCat(name, ".weight");
  const std::optional<TensorView> weight = checkpoint.Find(weight_name);
  if (weight.has_value()) return *weight;
  return absl::NotFoundError(absl::StrCat("the model has no tensor ", weight_name));
}

}  // namespace

DenseAlgebra::DenseAlgebra(int threads)
    : library_threads_(openblas_get_num_threads()),
      pool_(threads > 0 ? threads
                        : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))) {
  openblas_set_num_threads(1);
}

DenseAlgebra::~DenseAlgebra() { openblas_set_num_threads(library_threads_); }

std::vector<float> DenseAlgebra::Values(const TensorView& view) {
  std::vector<float> values(view.rows * view.cols);
  for (int64_t r = 0; r < view.rows; ++r) {
    DequantizeRow(view, r, absl::MakeSpan(values).subspan(r * view.cols, view.cols));
  }
  return values;
}

absl::Status DenseAlgebra::Load(const Checkpoint& checkpoint, const std::string& name,
                                DenseLinear* linear) {
  ASSIGN_OR_RETURN(const TensorView weight, FindWeight(checkpoint, name));
  const std::optional<TensorView> bias = checkpoint.Find(absl::StrCat(name, ".bias"));
  linear->bias = bias.has_value() ? Values(*bias) : std::vector<float>();
  return LoadWeight(weight, linear);
}

absl::StatusOr<DenseNorm> DenseAlgebra::LoadNorm(const Checkpoint& checkpoint,
                                                 const std::string& name) {
  ASSIGN_OR_RETURN(const TensorView weight, FindWeight(checkpoint, name));
  const std::optional<TensorView> bias = checkpoint.Find(absl::StrCat(name, ".bias"));
  return DenseNorm{.kind = checkpoint.config().norm,
                   .epsilon = checkpoint.config().norm_epsilon,
                   .weight = Values(weight),
                   .bias = bias.has_value() ? Values(*bias) : std::vector<float>()};
}

void DenseAlgebra::Norm(const DenseNorm& norm, const float* in, int64_t rows, float* out) {
  const RowNorm row = RowNormOf(norm);
  pool_.ParallelFor(rows, pool_.Grain(rows), [&](int64_t begin, int64_t end, int) {
    NormRows(row, in + begin * row.dims, end - begin, out + begin * row.dims);
  });
}

void DenseAlgebra::NormBackward(const DenseNorm& norm, const float* in, const float* dout,
                                int64_t rows, bool accumulate, float* dx) {
  const RowNorm row = RowNormOf(norm);
  pool_.ParallelFor(rows, pool_.Grain(rows), [&](int64_t begin, int64_t end, int) {
    const int64_t first = begin * row.dims;
    NormRowsBackward(row, in + first, dout + first, end - begin, accumulate, dx + first);
  });
}

absl::StatusOr<std::unique_ptr<DenseAlgebra>> CreateDenseAlgebra(const std::string& device,
                                                                 int threads) {
#if LATENTD_CUDA
  absl::string_view name = device;
  int gpu = 0;
  if (absl::ConsumePrefix(&name, "cuda:") && absl::SimpleAtoi(name, &gpu)) {
    return CreateCudaAlgebra(gpu, threads);
  }
#endif
  return CreateCpuAlgebra(threads);
}

}  // namespace latentd
