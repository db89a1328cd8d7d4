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

// Products: bf16 inputs, fp32 sums and outputs. Few rows by a kernel of our own (gemv.h), others on
// the tensor cores by cuBLASLt, whose algorithm is chosen once for each kind of product and number
// of rows, rounded up to a power of 2. `batch_invariant` ones are all by the algorithm for many
// rows, so that an output row does not depend on how many others there are.
class CudaMatmul {
 public:
  static absl::StatusOr<std::unique_ptr<CudaMatmul>> Create(CudaDevice& device,
                                                            bool batch_invariant);
  ~CudaMatmul();

  void Run(const MatmulParams& p);

 private:
  struct Layouts;
  // n, k, out_stride, aligned output, rows for which an algorithm is chosen
  using Kind = std::tuple<int64_t, int64_t, int64_t, bool, int64_t>;
  CudaMatmul(CudaDevice& device, bool batch_invariant)
      : device_(device), batch_invariant_(batch_invariant) {}
  void Multiply(const Product& product, int64_t rows, int64_t k);
  const cublasLtMatmulAlgo_t& AlgorithmFor(const Kind& kind);
  void Check(cublasStatus_t status, const char* what);

  CudaDevice& device_;
  const bool batch_invariant_;
  cublasLtHandle_t handle_ = nullptr;
  DeviceArray<uint16_t> inputs_;  // [T, k] of the latest product, as bf16
  DeviceArray<uint8_t> workspace_;
  std::map<Kind, cublasLtMatmulAlgo_t> algorithms_;
};

}  // namespace latentd
