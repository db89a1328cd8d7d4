#include "kernels/cuda/matmul.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cuda/convert.h"
#include "kernels/cuda/gemv.h"
#include "kernels/cuda/plain_ops.h"

namespace latentd {
namespace {

constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
constexpr int64_t kAlignment = 8;      // of k: 16 bytes of bf16
constexpr int64_t kTypicalRows = 128;  // for which a batch-invariant algorithm is chosen
constexpr int64_t kMostRows = 1024;    // that algorithms tell apart
// In bytes, of what an op is given as its output: as DeviceArray has it, and at least.
constexpr uint32_t kOutAlignment = 256, kLeastOutAlignment = 4;

}  // namespace

absl::StatusOr<std::unique_ptr<CudaWeight>> CudaWeight::Create(CudaDevice& device,
                                                               const TensorView& view) {
  if (view.data == nullptr || view.rows <= 0 || view.cols <= 0 ||
      view.cols % Info(view.dtype).block_size != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "weight of ", view.rows, " x ", view.cols, " values",
        view.data == nullptr ? " without data" : "", ": both must be at least 1, and columns of ",
        Info(view.dtype).name, " a multiple of ", Info(view.dtype).block_size));
  }
  if (view.cols % kAlignment != 0) {
    return absl::UnimplementedError(absl::StrCat("weight of ", view.rows, " x ", view.cols,
                                                 " values: on CUDA columns must be a multiple of ",
                                                 kAlignment));
  }
  ASSIGN_OR_RETURN(auto values, DeviceArray<uint16_t>::Create(device, view.rows * view.cols));
  if (view.dtype == DType::kBF16) {
    device.CopyIn(values.data(), view.data, view.bytes());
    return std::unique_ptr<CudaWeight>(new CudaWeight(view, std::move(values)));
  }
  // In pieces, so that the host holds little of it.
  constexpr int64_t kPiece = int64_t{1} << 24;
  const int64_t rows_at_once = std::max<int64_t>(1, kPiece / view.cols);
  std::vector<float> row(view.cols);
  std::vector<uint16_t> piece;
  for (int64_t begin = 0; begin < view.rows; begin += rows_at_once) {
    const int64_t end = std::min(begin + rows_at_once, view.rows);
    piece.clear();
    for (int64_t r = begin; r < end; ++r) {
      DequantizeRow(view, r, absl::MakeSpan(row));
      for (const float value : row) piece.push_back(ToBFloat16(value));
    }
    device.CopyIn(values.data() + begin * view.cols, piece.data(),
                  std::ssize(piece) * int64_t{sizeof(uint16_t)});
  }
  return std::unique_ptr<CudaWeight>(new CudaWeight(view, std::move(values)));
}

// What cuBLASLt must know of out[T, n] = in[T, k] weight[n, k]^T. It counts by columns: out is
// [n, T], the weight [k, n] and transposed, the input [k, T].
struct CudaMatmul::Layouts {
  Layouts(int64_t n, int64_t rows, int64_t k, int64_t stride) {
    cublasLtMatmulDescCreate(&product, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    const cublasOperation_t transpose = CUBLAS_OP_T;
    cublasLtMatmulDescSetAttribute(product, CUBLASLT_MATMUL_DESC_TRANSA, &transpose,
                                   sizeof(transpose));
    cublasLtMatrixLayoutCreate(&weight, CUDA_R_16BF, k, n, k);
    cublasLtMatrixLayoutCreate(&in, CUDA_R_16BF, k, rows, k);
    cublasLtMatrixLayoutCreate(&out, CUDA_R_32F, n, rows, stride);
  }
  ~Layouts() {
    cublasLtMatrixLayoutDestroy(out);
    cublasLtMatrixLayoutDestroy(in);
    cublasLtMatrixLayoutDestroy(weight);
    cublasLtMatmulDescDestroy(product);
  }
  Layouts(const Layouts&) = delete;
  Layouts& operator=(const Layouts&) = delete;

  cublasLtMatmulDesc_t product = nullptr;
  cublasLtMatrixLayout_t weight = nullptr, in = nullptr, out = nullptr;
};

absl::StatusOr<std::unique_ptr<CudaMatmul>> CudaMatmul::Create(CudaDevice& device,
                                                               bool batch_invariant) {
  std::unique_ptr<CudaMatmul> matmul(new CudaMatmul(device, batch_invariant));
  if (const cublasStatus_t status = cublasLtCreate(&matmul->handle_);
      status != CUBLAS_STATUS_SUCCESS) {
    return absl::InternalError(absl::StrCat("cuBLASLt: ", cublasLtGetStatusString(status)));
  }
  RETURN_IF_ERROR(matmul->workspace_.Reserve(device, kWorkspaceBytes));
  return matmul;
}

CudaMatmul::~CudaMatmul() {
  if (handle_ != nullptr) cublasLtDestroy(handle_);
}

void CudaMatmul::Run(const MatmulParams& p) {
  if (p.rows == 0) return;
  if (!batch_invariant_ && FitsGemv(device_, p.rows, p.k)) return CudaGemv(device_, p);
  if (p.norm != nullptr) CudaNorm(device_, *p.norm);
  if (const absl::Status status = inputs_.Reserve(device_, p.rows * p.k); !status.ok()) {
    return device_.Fail(std::string(status.message()));
  }
  CudaToBFloat16(device_, p.in, p.rows * p.k, inputs_.data());
  for (const Product& product : p.products) Multiply(product, p.rows, p.k);
  if (p.activation != nullptr) CudaActivation(device_, *p.activation);
}

void CudaMatmul::Multiply(const Product& product, int64_t rows, int64_t k) {
  const auto& weight = static_cast<const CudaWeight&>(*product.weight);
  const int64_t n = weight.rows();
  LATENTD_CHECK(weight.cols() == k && product.out_stride >= n);
  if (product.bias != nullptr) CudaStartFromBias(device_, product, rows);
  const Layouts layouts(n, rows, k, product.out_stride);
  const int64_t chosen_for =
      batch_invariant_
          ? kTypicalRows
          : std::min(kMostRows, static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows))));
  const bool aligned = reinterpret_cast<uintptr_t>(product.out) % kOutAlignment == 0;
  const float one = 1.0f, added = product.accumulate || product.bias != nullptr ? 1.0f : 0.0f;
  Check(cublasLtMatmul(handle_, layouts.product, &one, weight.values(), layouts.weight,
                       inputs_.data(), layouts.in, &added, product.out, layouts.out, product.out,
                       layouts.out, &AlgorithmFor({n, k, product.out_stride, aligned, chosen_for}),
                       workspace_.data(), static_cast<size_t>(workspace_.size()), device_.stream()),
        "product");
}

const cublasLtMatmulAlgo_t& CudaMatmul::AlgorithmFor(const Kind& kind) {
  const auto [it, is_new] = algorithms_.try_emplace(kind);
  if (!is_new) return it->second;
  const auto& [n, k, stride, aligned, rows] = kind;
  const Layouts typical(n, rows, k, stride);
  cublasLtMatmulPreference_t preference = nullptr;
  Check(cublasLtMatmulPreferenceCreate(&preference), "preference");
  const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
    Check(cublasLtMatmulPreferenceSetAttribute(preference, attribute, &value, sizeof(value)),
          "preference");
  };
  set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<uint64_t>(workspace_.size()));
  const uint32_t out_alignment = aligned ? kOutAlignment : kLeastOutAlignment;
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out_alignment);
  set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out_alignment);
  cublasLtMatmulHeuristicResult_t found{};
  int count = 0;
  Check(cublasLtMatmulAlgoGetHeuristic(handle_, typical.product, typical.weight, typical.in,
                                       typical.out, typical.out, preference, 1, &found, &count),
        "choice of an algorithm");
  cublasLtMatmulPreferenceDestroy(preference);
  it->second = found.algo;
  return it->second;
}

void CudaMatmul::Check(cublasStatus_t status, const char* what) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  device_.Fail(absl::StrCat("cuBLASLt: ", what, ": ", cublasLtGetStatusString(status)));
}

}  // namespace latentd
