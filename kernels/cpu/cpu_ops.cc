#include "kernels/cpu/cpu_ops.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "hwy/targets.h"
#include "kernels/cpu/activation.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/embed.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/norm.h"
#include "kernels/cpu/packed_weight.h"
#include "kernels/cpu/rope.h"
#include "kernels/cpu/sample.h"

namespace latentd {
namespace {

// The best of the kinds that are compiled and that the processor has: the lowest bit.
const char* TargetName() {
  const int64_t targets = hwy::SupportedTargets() & HWY_TARGETS;
  return hwy::TargetName(targets & -targets);
}

}  // namespace

CpuOps::CpuOps(int num_threads)
    : name_(absl::StrCat("cpu (", TargetName(), ")")), pool_(num_threads), scratch_(num_threads) {}

absl::StatusOr<std::unique_ptr<Weight>> CpuOps::PrepareWeight(const TensorView& view) {
  return PackedWeight::Create(view, weight_memory_, pool_);
}

absl::StatusOr<std::unique_ptr<AttentionPlan>> CpuOps::PrepareAttention(const AttentionSpec& spec) {
  return PrepareCpuAttention(spec);
}

void CpuOps::Embed(const EmbedParams& p) { CpuEmbed(pool_, p); }
void CpuOps::Norm(const NormParams& p) { CpuNorm(pool_, p); }
void CpuOps::Rope(const RopeParams& p) { CpuRope(pool_, p); }
void CpuOps::Activation(const ActivationParams& p) { CpuActivation(pool_, p); }
void CpuOps::AppendCache(const AppendCacheParams& p) { CpuAppendCache(pool_, p); }
void CpuOps::Attention(const AttentionParams& p) { CpuAttention(pool_, scratch_, p); }

void CpuOps::Matmul(const MatmulParams& p) {
  if (p.norm != nullptr) Norm(*p.norm);
  CpuMatmul(pool_, scratch_, p);
  if (p.activation != nullptr) Activation(*p.activation);
}

void CpuOps::Gather(const GatherParams& p) {
  for (size_t n = 0; n < p.rows.size(); ++n) {
    std::copy_n(p.in + p.rows[n] * p.dims, p.dims, p.out + n * p.dims);
  }
}

void CpuOps::LogProbability(const LogProbabilityParams& p) {
  LATENTD_CHECK(p.token_ids.size() == p.results.size());
  const auto rows = static_cast<int64_t>(p.token_ids.size());
  pool_.ParallelFor(rows, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t n = begin; n < end; ++n) {
      p.results[n] = CpuLogProbability(p.logits + n * p.vocab, p.vocab, p.token_ids[n]);
    }
  });
}

void CpuOps::Sample(const SampleParams& p) {
  LATENTD_CHECK(p.rows.size() == p.results.size());
  pool_.ParallelFor(static_cast<int64_t>(p.rows.size()), 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      p.results[r] = CpuSampleRow(p.logits + r * p.vocab, p.vocab, p.rows[r]);
    }
  });
}

absl::StatusOr<std::unique_ptr<Ops>> CreateCpuOps(int num_threads) {
  constexpr int kMaxThreads = 1024;
  if (num_threads < 1 || num_threads > kMaxThreads) {
    return absl::InvalidArgumentError(
        absl::StrCat("threads: ", num_threads, " is not in [1, ", kMaxThreads, "]"));
  }
  return std::make_unique<CpuOps>(num_threads);
}

}  // namespace latentd
