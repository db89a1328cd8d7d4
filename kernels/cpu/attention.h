#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/ops.h"
#include "kernels/params.h"

namespace latentd {

// Ops::PrepareAttention of the CPU backend: the spec checked, k_up and v_up in the order and
// precision of the kernels.
absl::StatusOr<std::unique_ptr<AttentionPlan>> PrepareCpuAttention(const AttentionSpec& spec);

// Ops::AppendCache and Ops::Attention. The plan is one that PrepareCpuAttention made; `scratch` has
// a place for every thread of `pool`.
void CpuAppendCache(ThreadPool& pool, const AppendCacheParams& p);
void CpuAttention(ThreadPool& pool, Scratch& scratch, const AttentionParams& p);

}  // namespace latentd
