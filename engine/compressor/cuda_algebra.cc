#include "engine/compressor/cuda_algebra.h"

#include <cublasLt.h>

#include <cstring>
#include <map>
#include <string>
#include <tuple>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/compressor/staged_copies.h"
#include "kernels/cuda/cuda_device.h"

namespace latentd {
namespace {

// Left free by the weights that stay: for activations and the largest weight that does not.
constexpr int64_t kSpareBytes = int64_t{2} << 30;

// One side of a product, row-major in the device's memory.
struct Side {
  const void* values;
  Transpose transpose = Transpose::kNo;
};

class CudaAlgebra final : public DenseAlgebra {
 public:
  static absl::StatusOr<std::unique_ptr<DenseAlgebra>> Create(int index, int threads) {
    std::unique_ptr<CudaAlgebra> algebra(new CudaAlgebra(threads));
    ASSIGN_OR_RETURN(algebra->device_, CudaDevice::Create(index));
    ASSIGN_OR_RETURN(algebra->copies_, StagedCopies::Create(*algebra->device_, algebra->pool()));
    if (const cublasStatus_t status = cublasLtCreate(&algebra->handle_);
        status != CUBLAS_STATUS_SUCCESS) {
      return absl::InternalError(absl::StrCat("cuBLASLt: ", cublasLtGetStatusString(status)));
    }
    return algebra;
  }

  ~CudaAlgebra() override {
    if (handle_ != nullptr) cublasLtDestroy(handle_);
  }

  absl::Status status() override { return device_->Wait(); }

  absl::Status LoadWeight(const TensorView& view, DenseLinear* linear) override {
    linear->out = view.rows;
    linear->in = view.cols;
    const Key key(view.data, view.rows, view.cols, view.dtype);
    if (const auto known = kept_.find(key); known != kept_.end()) {
      linear->weight = known->second.data();
      return absl::OkStatus();
    }
    const int64_t size = view.rows * view.cols;
    float* memory = nullptr;
    if (FreeBytes() - size * int64_t{sizeof(float)} >= kSpareBytes) {
      ASSIGN_OR_RETURN(kept_[key], DeviceArray<float>::Create(*device_, size));
      memory = kept_[key].data();
    } else {
      RETURN_IF_ERROR(linear->memory.Reserve(*device_, size));
      memory = linear->memory.data();
    }
    linear->weight = memory;
    copies_->In(memory, view.rows, view.cols * int64_t{sizeof(float)},
                [&](int64_t begin, int64_t end, std::byte* piece) {
                  auto* row = reinterpret_cast<float*>(piece);
                  for (int64_t r = begin; r < end; ++r, row += view.cols) {
                    DequantizeRow(view, r, absl::MakeSpan(row, view.cols));
                  }
                });
    return device_->Wait();
  }

  void Product(const float* x, int64_t rows, const DenseLinear& linear, bool accumulate,
               float* out) override {
    if (!Reserve(rows * linear.in, 0, rows * linear.out)) return;
    CopyIn(x, rows, linear.in, in_.data());
    Multiply(CUDA_R_32F, rows, linear.out, linear.in, {in_.data()},
             {linear.weight, Transpose::kYes}, out_.data());
    CopyOut(rows, linear.out, linear.bias, accumulate, out);
  }

  void ProductBackward(const float* dout, int64_t rows, const DenseLinear& linear, bool accumulate,
                       float* dx) override {
    if (!Reserve(rows * linear.out, 0, rows * linear.in)) return;
    CopyIn(dout, rows, linear.out, in_.data());
    Multiply(CUDA_R_32F, rows, linear.in, linear.out, {in_.data()}, {linear.weight}, out_.data());
    CopyOut(rows, linear.in, {}, accumulate, dx);
  }

  void WeightGradient(const float* dout, int64_t out, const float* x, int64_t in, int64_t rows,
                      float* gradient) override {
    if (!Reserve(rows * out, rows * in, out * in)) return;
    CopyIn(dout, rows, out, in_.data());
    CopyIn(x, rows, in, other_in_.data());
    Multiply(CUDA_R_32F, out, in, rows, {in_.data(), Transpose::kYes}, {other_in_.data()},
             out_.data());
    CopyOut(out, in, {}, /*accumulate=*/false, gradient);
  }

  void AddMoments(absl::Span<const Moment> moments) override {
    for (const Moment& moment : moments) AddMomentOf(moment);
  }

 private:
  using Key = std::tuple<const std::byte*, int64_t, int64_t, DType>;  // a view

  explicit CudaAlgebra(int threads) : DenseAlgebra(threads) {}

  int64_t FreeBytes() {
    size_t free = 0, total = 0;
    device_->Check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
    return static_cast<int64_t>(free);
  }

  // Room for a product's sides and result, in numbers. What it lacks becomes the device's error.
  bool Reserve(int64_t in, int64_t other_in, int64_t out) {
    return Reserve(&in_, in) && Reserve(&other_in_, other_in) && Reserve(&out_, out);
  }
  template <typename T>
  bool Reserve(DeviceArray<T>* array, int64_t size) {
    const absl::Status status = array->Reserve(*device_, size);
    if (!status.ok()) device_->Fail(std::string(status.message()));
    return status.ok();
  }

  void CopyIn(const float* from, int64_t rows, int64_t cols, float* to) {
    const int64_t row_bytes = cols * int64_t{sizeof(float)};
    copies_->In(to, rows, row_bytes, [&](int64_t begin, int64_t end, std::byte* piece) {
      std::memcpy(piece, from + begin * cols, (end - begin) * row_bytes);
    });
  }

  // to [rows, cols] = out_ + bias (+ to).
  void CopyOut(int64_t rows, int64_t cols, const std::vector<float>& bias, bool accumulate,
               float* to) {
    const int64_t row_bytes = cols * int64_t{sizeof(float)};
    copies_->Out(out_.data(), rows, row_bytes,
                 [&](int64_t begin, int64_t end, const std::byte* piece) {
                   if (bias.empty() && !accumulate) {
                     std::memcpy(to + begin * cols, piece, (end - begin) * row_bytes);
                     return;
                   }
                   const auto* from = reinterpret_cast<const float*>(piece);
                   for (int64_t r = begin; r < end; ++r, from += cols) {
                     float* row = to + r * cols;
                     for (int64_t c = 0; c < cols; ++c) {
                       const float value = bias.empty() ? from[c] : from[c] + bias[c];
                       row[c] = accumulate ? row[c] + value : value;
                     }
                   }
                 });
  }

  void AddMomentOf(const Moment& moment) {
    const int64_t n = moment.sum->cols;
    if (!Reserve(&wide_, moment.rows * n) || !Reserve(&moment_, n * n)) return;
    constexpr int64_t kBytes = sizeof(double);
    copies_->In(
        wide_.data(), moment.rows, n * kBytes, [&](int64_t begin, int64_t end, std::byte* piece) {
          std::copy(moment.x + begin * n, moment.x + end * n, reinterpret_cast<double*>(piece));
        });
    Multiply(CUDA_R_64F, n, n, moment.rows, {wide_.data(), Transpose::kYes}, {wide_.data()},
             moment_.data());
    copies_->Out(moment_.data(), n, n * kBytes,
                 [&](int64_t begin, int64_t end, const std::byte* piece) {
                   const auto* from = reinterpret_cast<const double*>(piece);
                   for (int64_t r = begin; r < end; ++r, from += n) {
                     double* row = moment.sum->values.data() + r * n;
                     for (int64_t c = r; c < n; ++c) row[c] += from[c];
                   }
                 });
  }

  // out [m, n] = op(a) op(b), k terms each. Sums are of the inputs' type, with none of its bits
  // given up. cuBLASLt counts by columns: to it out is [n, m], and is op(b)^T op(a)^T.
  void Multiply(cudaDataType_t type, int64_t m, int64_t n, int64_t k, Side a, Side b, void* out) {
    const bool at = a.transpose == Transpose::kYes, bt = b.transpose == Transpose::kYes;
    const bool wide = type == CUDA_R_64F;
    const cublasOperation_t op_a = at ? CUBLAS_OP_T : CUBLAS_OP_N,
                            op_b = bt ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtMatmulDesc_t product = nullptr;
    cublasLtMatrixLayout_t a_layout = nullptr, b_layout = nullptr, out_layout = nullptr;
    cublasLtMatmulDescCreate(&product, wide ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F, type);
    cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &op_b, sizeof(op_b));
    cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSB, &op_a, sizeof(op_a));
    cublasLtMatrixLayoutCreate(&b_layout, type, bt ? k : n, bt ? n : k, bt ? k : n);
    cublasLtMatrixLayoutCreate(&a_layout, type, at ? m : k, at ? k : m, at ? m : k);
    cublasLtMatrixLayoutCreate(&out_layout, type, n, m, n);
    const float one = 1, zero = 0;
    const double wide_one = 1, wide_zero = 0;
    const void* factor = wide ? static_cast<const void*>(&wide_one) : &one;
    const void* added = wide ? static_cast<const void*>(&wide_zero) : &zero;
    const cublasStatus_t status =
        cublasLtMatmul(handle_, product, factor, b.values, b_layout, a.values, a_layout, added, out,
                       out_layout, out, out_layout, nullptr, nullptr, 0, device_->stream());
    if (status != CUBLAS_STATUS_SUCCESS) {
      device_->Fail(absl::StrCat("cuBLASLt: a product of ", m, " x ", n, " sums of ", k,
                                 " terms: ", cublasLtGetStatusString(status)));
    }
    cublasLtMatrixLayoutDestroy(out_layout);
    cublasLtMatrixLayoutDestroy(a_layout);
    cublasLtMatrixLayoutDestroy(b_layout);
    cublasLtMatmulDescDestroy(product);
  }

  std::unique_ptr<CudaDevice> device_;  // outlives what lies in its memory
  std::unique_ptr<StagedCopies> copies_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Key, DeviceArray<float>> kept_;  // weights
  DeviceArray<float> in_, other_in_, out_;  // of the latest product
  DeviceArray<double> wide_, moment_;       // of the latest moment
};

}  // namespace

absl::StatusOr<std::unique_ptr<DenseAlgebra>> CreateCudaAlgebra(int index, int threads) {
  return CudaAlgebra::Create(index, threads);
}

}  // namespace latentd
