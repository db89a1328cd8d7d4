#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace latentd {

struct CudaOptions {
  // The law of Ops (kernels/ops.h). Without it, attention of sequences that have one row in a step
  // has kernels of its own, and products have algorithms for few rows, faster by far: a row's bits
  // then depend on the others of its step, by rounding.
  bool batch_invariant = false;
};

// The ops on GPU `index` of the process. FAILED_PRECONDITION without a driver or a GPU,
// INVALID_ARGUMENT for an index past the last, UNIMPLEMENTED below compute capability 8.0,
// RESOURCE_EXHAUSTED for want of the GPU's memory.
absl::StatusOr<std::unique_ptr<Ops>> CreateCudaOps(int index, const CudaOptions& options = {});

// As PrepareAttention of ops that CreateCudaOps has made, whatever their options.
absl::StatusOr<std::unique_ptr<AttentionPlan>> PrepareCudaAttention(Ops& ops,
                                                                    const AttentionSpec& spec,
                                                                    bool batch_invariant);

}  // namespace latentd
