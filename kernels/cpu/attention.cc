#include "kernels/cpu/attention.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cache_view.h"
#include "kernels/cpu/amx_product.h"
#include "kernels/cpu/attention_item.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/attention_schedule.h"

namespace latentd {
namespace {

const CpuAttentionPlan& PlanOf(const AttentionPlan* plan) {
  LATENTD_CHECK(plan != nullptr);
  return static_cast<const CpuAttentionPlan&>(*plan);
}

void CheckCache(const CpuAttentionPlan& plan, const CacheView& cache) {
  CheckView(plan.spec().cache, cache);
  for (const int32_t kv_len : cache.kv_lens) {
    LATENTD_CHECK(plan.pairs == 0 || kv_len <= plan.spec().rope->max_positions);
  }
}

void MergeRows(ThreadPool& pool, const CpuAttentionPlan& plan, const AttentionParams& p,
               const AttentionSchedule& schedule, float* states) {
  const int heads = plan.spec().num_heads;
  for (int s = 0; s < schedule.sequences(); ++s) {
    const PartialStates partials = schedule.Partials(s, states);
    const int64_t first_row = p.cache.cu_q_lens[s];
    const auto merge = [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const auto position = static_cast<int>(schedule.FirstPosition(s) + i / heads);
        const CpuAttentionPlan::Parts parts = plan.PartsOf(position);
        // Where a row sees the sinks, its first split is the first of all.
        const int first = parts.sinks ? 0 : 1 + parts.first_split - partials.first_split;
        const int64_t place = (first_row * heads + i) * partials.max_parts + first;
        MergeParts(plan, partials.states + place * StateFloats(plan),
                   parts.sinks + parts.last_split - parts.first_split,
                   p.out + (first_row * heads + i) * plan.spec().head_dim);
      }
    };
    const int64_t outputs = int64_t{schedule.QueryRows(s)} * heads;
    constexpr int kFewRows = 8;  // not worth waking a thread
    if (outputs <= int64_t{kFewRows} * heads) {
      merge(0, outputs, 0);
    } else {
      pool.ParallelFor(outputs, heads, merge);
    }
  }
}

}  // namespace

absl::StatusOr<std::unique_ptr<AttentionPlan>> PrepareCpuAttention(const AttentionSpec& spec) {
  RETURN_IF_ERROR(ValidateAttention(spec));
  for (const CachePlane* plane : {&spec.cache.k, &spec.cache.v}) {
    if (plane->dims() > kMaxRowDims) {
      return absl::UnimplementedError(absl::StrCat("attention: a latent head of ", plane->dims(),
                                                   " dims, this backend takes at most ",
                                                   kMaxRowDims));
    }
  }
  if (spec.head_dim > kMaxRowDims) {
    return absl::UnimplementedError(absl::StrCat(
        "attention: heads of ", spec.head_dim, " dims, this backend takes at most ", kMaxRowDims));
  }
  return std::make_unique<CpuAttentionPlan>(spec, RequestAmx());
}

void CpuAttention(ThreadPool& pool, Scratch& scratch, const AttentionParams& p) {
  const CpuAttentionPlan& plan = PlanOf(p.plan);
  CheckCache(plan, p.cache);
  const AttentionSchedule schedule(plan, p.cache, pool.num_threads());
  float* states = schedule.by_split() ? scratch.Shared<float>(schedule.partial_floats()) : nullptr;
  const int64_t floats = ItemFloats(plan, schedule.max_rows());
  pool.ParallelFor(schedule.items(), 1, [&](int64_t begin, int64_t end, int thread) {
    float* memory = scratch.ForThread<float>(thread, floats);
    for (int64_t n = begin; n < end; ++n) {
      const AttentionItem item = schedule.Item(n);
      AttendItem(plan, p, item, memory, schedule.Partials(item.sequence, states));
    }
  });
  if (schedule.by_split()) MergeRows(pool, plan, p, schedule, states);
}

}  // namespace latentd
