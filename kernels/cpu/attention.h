#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/ops.h"
#include "kernels/params.h"

namespace latentd {

class ThreadPool;  // kernels/cpu/thread_pool.h

// Memory that attention reuses from step to step; it grows to the largest step and stays. Owned by
// CpuOps, used by its thread (and, during a call, by the pool's).
class AttentionScratch {
 public:
  AttentionScratch();
  ~AttentionScratch();
  AttentionScratch(const AttentionScratch&) = delete;
  AttentionScratch& operator=(const AttentionScratch&) = delete;

 private:
  friend void CpuAttention(ThreadPool& pool, AttentionScratch& scratch, const AttentionParams& p);
  struct Memory;
  std::unique_ptr<Memory> memory_;
};

// Ops::PrepareAttention of the CPU backend: the spec checked, k_up and v_up in the order and
// precision of the kernels.
absl::StatusOr<std::unique_ptr<AttentionPlan>> PrepareCpuAttention(const AttentionSpec& spec);

// Ops::AppendCache and Ops::Attention. The plan is one that PrepareCpuAttention made.
void CpuAppendCache(ThreadPool& pool, const AppendCacheParams& p);
void CpuAttention(ThreadPool& pool, AttentionScratch& scratch, const AttentionParams& p);

}  // namespace latentd
