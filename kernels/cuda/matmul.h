#pragma once

#include <cublasLt.h>

#include <cstdint>
#include <map>
#include <memory>
#include <tuple>

#include "absl/status/statusor.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/ops.h"

namespace latentd {

// A weight as bf16 in the device's memory, whatever the file stores: the tensor cores' own type,
// and its rounding (2^-9 of a value) is below that of 8-bit activations. Quantised weights take
// more memory so than in the file; the worker says so at load.
class CudaWeight final : public Weight {
 public:
  static absl::StatusOr<std::unique_ptr<CudaWeight>> Create(CudaDevice& device,
                                                            const TensorView& view);
  int64_t bytes() const override { return values_.size() * int64_t{sizeof(uint16_t)}; }
  const uint16_t* values() const { return values_.data(); }  // [rows, cols]

 private:
  CudaWeight(const TensorView& view, DeviceArray<uint16_t> values)
      : Weight(view), values_(std::move(values)) {}
  const DeviceArray<uint16_t> values_;
};

// Products on the tensor cores by cuBLASLt: bf16 inputs, fp32 sums and outputs. One algorithm for
// each kind of product serves every number of rows, chosen once for many rows, so that an output
// row does not depend on how many others there are.
class CudaMatmul {
 public:
  static absl::StatusOr<std::unique_ptr<CudaMatmul>> Create(CudaDevice& device);
  ~CudaMatmul();

  void Run(const MatmulParams& p);

 private:
  struct Layouts;
  using Kind = std::tuple<int64_t, int64_t, int64_t, bool>;  // n, k, out_stride, aligned output
  explicit CudaMatmul(CudaDevice& device) : device_(device) {}
  void Multiply(const Product& product, int64_t rows, int64_t k);
  const cublasLtMatmulAlgo_t& AlgorithmFor(const Kind& kind);
  void Check(cublasStatus_t status, const char* what);

  CudaDevice& device_;
  cublasLtHandle_t handle_ = nullptr;
  DeviceArray<uint16_t> inputs_;  // [T, k] of the latest product, as bf16
  DeviceArray<uint8_t> workspace_;
  std::map<Kind, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace latentd
