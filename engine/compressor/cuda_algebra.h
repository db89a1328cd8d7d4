#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/compressor/dense_algebra.h"

namespace latentd {

// Products by cuBLASLt in fp32, moments in double, on GPU `index` of the process; rows on `threads`
// threads of the host (0: one per core). Weights stay in the GPU's memory in fp32 while they leave
// 2 GiB of it; those beyond are brought there each time. Errors of CudaDevice::Create.
absl::StatusOr<std::unique_ptr<DenseAlgebra>> CreateCudaAlgebra(int index, int threads);

}  // namespace latentd
