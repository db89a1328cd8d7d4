// The functions of cuBLASLt that latentd calls: column-major products, one after another.

#include <cublasLt.h>

#include <cstring>

#include "tests/emulation/queue.h"

namespace {

struct Layout {
  cudaDataType type;
  uint64_t rows, cols;
  int64_t stride;

  float At(const void* matrix, uint64_t row, uint64_t col) const {
    const uint64_t index = row + col * stride;
    if (type == CUDA_R_32F) return static_cast<const float*>(matrix)[index];
    const uint32_t bits = uint32_t{static_cast<const uint16_t*>(matrix)[index]} << 16;
    float value;
    std::memcpy(&value, &bits, sizeof(value));
    return value;
  }
};
struct Product {
  bool transposes_a = false, transposes_b = false;
};

}  // namespace

extern "C" {

cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  return *handle = nullptr, CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtDestroy(cublasLtHandle_t) { return CUBLAS_STATUS_SUCCESS; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "emulated error"; }

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* product, cublasComputeType_t,
                                        cudaDataType_t) {
  *product = reinterpret_cast<cublasLtMatmulDesc_t>(new Product);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t product) {
  delete reinterpret_cast<Product*>(product);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t product,
                                              cublasLtMatmulDescAttributes_t attribute,
                                              const void* value, size_t) {
  auto& of = *reinterpret_cast<Product*>(product);
  const bool transposes = *static_cast<const cublasOperation_t*>(value) == CUBLAS_OP_T;
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSA) of.transposes_a = transposes;
  if (attribute == CUBLASLT_MATMUL_DESC_TRANSB) of.transposes_b = transposes;
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* layout, cudaDataType type,
                                          uint64_t rows, uint64_t cols, int64_t stride) {
  *layout = reinterpret_cast<cublasLtMatrixLayout_t>(new Layout{type, rows, cols, stride});
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t layout) {
  delete reinterpret_cast<Layout*>(layout);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t*) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                    cublasLtMatmulPreferenceAttributes_t,
                                                    const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int,
                                              cublasLtMatmulHeuristicResult_t*, int* found) {
  return *found = 1, CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t product, const void* alpha,
                              const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                              cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                              cublasLtMatrixLayout_t, void* d, cublasLtMatrixLayout_t d_layout,
                              const cublasLtMatmulAlgo_t*, void*, size_t, cudaStream_t) {
  latentd::emulation::Put(
      [=, of = *reinterpret_cast<Product*>(product), left = *reinterpret_cast<Layout*>(a_layout),
       right = *reinterpret_cast<Layout*>(b_layout), out = *reinterpret_cast<Layout*>(d_layout),
       by = *static_cast<const float*>(alpha), added = *static_cast<const float*>(beta)] {
        const uint64_t depth = of.transposes_a ? left.rows : left.cols;
        for (uint64_t j = 0; j < out.cols; ++j) {
          for (uint64_t i = 0; i < out.rows; ++i) {
            float sum = 0.0f;
            for (uint64_t k = 0; k < depth; ++k) {
              sum += (of.transposes_a ? left.At(a, k, i) : left.At(a, i, k)) *
                     (of.transposes_b ? right.At(b, j, k) : right.At(b, k, j));
            }
            const uint64_t index = i + j * out.stride;
            const float old = added == 0.0f ? 0.0f : added * static_cast<const float*>(c)[index];
            static_cast<float*>(d)[index] = by * sum + old;
          }
        }
      });
  return CUBLAS_STATUS_SUCCESS;
}

}  // extern "C"
