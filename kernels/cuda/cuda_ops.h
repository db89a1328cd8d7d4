#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace latentd {

// The ops on GPU `index` of the process. FAILED_PRECONDITION without a driver or a GPU,
// INVALID_ARGUMENT for an index past the last, UNIMPLEMENTED below compute capability 8.0,
// RESOURCE_EXHAUSTED for want of the GPU's memory.
absl::StatusOr<std::unique_ptr<Ops>> CreateCudaOps(int index);

}  // namespace latentd
