#include "kernels/cpu/attention.h"

#include <algorithm>
#include <cstdint>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cpu/amx_product.h"
#include "kernels/cpu/attention_item.h"
#include "kernels/cpu/attention_plan.h"

namespace latentd {
namespace {

// Query rows of an item: enough that making the tiles costs little beside using them, few enough
// that the sums of the item stay in the second-level cache.
constexpr int kMaxRows = 64;
constexpr int64_t kItemBytes = 1 << 20;
constexpr int kItemsPerThread = 3;
constexpr int64_t kMaxPartialBytes = 64 << 20;

int RowsPerItem(const CpuAttentionPlan& plan) {
  int rows = kMaxRows;
  while (rows > 1 && ItemFloats(plan, rows) * int64_t{sizeof(float)} > kItemBytes) rows /= 2;
  return rows;
}

int SplitsOf(int64_t tokens) {
  return static_cast<int>((tokens + kSplitTokens - 1) / kSplitTokens);
}

// The work of a step in the order in which threads take it: sequence by sequence, the later rows
// (which see more tokens) first. Item n is found without a list.
class Schedule {
 public:
  Schedule(const CpuAttentionPlan& plan, const CacheView& cache, int num_threads)
      : cache_(cache),
        sequences_(static_cast<int>(cache.kv_lens.size())),
        units_(plan.spec().num_kv_heads / plan.unit),
        rows_per_item_(RowsPerItem(plan)) {
    int64_t whole = 0, split = 0;
    for (int s = 0; s < sequences_; ++s) {
      whole += int64_t{units_} * RowBlocks(s);
      split += int64_t{units_} * RowBlocks(s) * SplitsOf(cache.kv_lens[s]);
      if (QueryRows(s) > 0) max_splits_ = std::max(max_splits_, SplitsOf(cache.kv_lens[s]));
      max_rows_ = std::max(max_rows_, std::min(rows_per_item_, QueryRows(s)));
    }
    const int64_t rows = cache.cu_q_lens.back();
    partial_floats_ = rows * plan.spec().num_heads * max_splits_ * StateFloats(plan);
    by_split_ = max_splits_ > 1 && whole < int64_t{num_threads} * kItemsPerThread &&
                partial_floats_ * int64_t{sizeof(float)} <= kMaxPartialBytes;
    items_ = by_split_ ? split : whole;
  }

  int64_t items() const { return items_; }
  bool by_split() const { return by_split_; }
  int max_splits() const { return max_splits_; }
  int max_rows() const { return max_rows_; }
  int64_t partial_floats() const { return partial_floats_; }

  int QueryRows(int s) const { return cache_.cu_q_lens[s + 1] - cache_.cu_q_lens[s]; }

  AttentionItem Item(int64_t n) const {
    AttentionItem item;
    for (;; ++item.sequence) {
      const int64_t here = int64_t{units_} * RowBlocks(item.sequence) * SplitItems(item.sequence);
      if (n < here) break;
      n -= here;
    }
    const int s = item.sequence;
    item.unit = static_cast<int>(n % units_);
    n /= units_;
    const int split_items = SplitItems(s);
    const int split = static_cast<int>(n % split_items);
    const int row_block = RowBlocks(s) - 1 - static_cast<int>(n / split_items);
    item.first_row = row_block * rows_per_item_;
    item.rows = std::min(rows_per_item_, QueryRows(s) - item.first_row);
    const int end = cache_.kv_lens[s] - QueryRows(s) + item.first_row + item.rows;
    item.first_split = by_split_ ? split : 0;
    // A split past the rows' own tokens is empty.
    item.last_split = by_split_ ? std::min(split + 1, SplitsOf(end)) : SplitsOf(end);
    return item;
  }

 private:
  int RowBlocks(int s) const { return (QueryRows(s) + rows_per_item_ - 1) / rows_per_item_; }
  int SplitItems(int s) const { return by_split_ ? SplitsOf(cache_.kv_lens[s]) : 1; }

  const CacheView& cache_;
  const int sequences_;
  const int units_;
  const int rows_per_item_;
  int max_splits_ = 0;
  int max_rows_ = 0;
  int64_t partial_floats_ = 0;
  bool by_split_ = false;  // every split is an item of its own, merged afterwards
  int64_t items_ = 0;
};

const CpuAttentionPlan& PlanOf(const AttentionPlan* plan) {
  LATENTD_CHECK(plan != nullptr);
  return static_cast<const CpuAttentionPlan&>(*plan);
}

void CheckCache(const CpuAttentionPlan& plan, const CacheView& cache) {
  LATENTD_CHECK(cache.cu_q_lens.size() == cache.kv_lens.size() + 1);
  LATENTD_CHECK(cache.block_table.size() >= cache.kv_lens.size() * cache.max_blocks);
  LATENTD_CHECK(cache.block_bytes >= plan.spec().cache.block_bytes());
  for (size_t s = 0; s < cache.kv_lens.size(); ++s) {
    const int32_t q_len = cache.cu_q_lens[s + 1] - cache.cu_q_lens[s];
    LATENTD_CHECK(q_len >= 0 && q_len <= cache.kv_lens[s]);
    LATENTD_CHECK(cache.kv_lens[s] <= cache.max_blocks * kBlockTokens);
    LATENTD_CHECK(plan.pairs == 0 || cache.kv_lens[s] <= plan.spec().rope->max_positions);
  }
}

void MergeRows(ThreadPool& pool, const CpuAttentionPlan& plan, const AttentionParams& p,
               int max_splits, float* partials) {
  const int heads = plan.spec().num_heads;
  const int64_t row_floats = heads * max_splits * StateFloats(plan);
  for (size_t s = 0; s < p.cache.kv_lens.size(); ++s) {
    const int first = p.cache.cu_q_lens[s];
    const int rows = p.cache.cu_q_lens[s + 1] - first;
    const auto merge = [&](int64_t begin, int64_t end, int) {
      for (int64_t i = begin; i < end; ++i) {
        const int64_t row = first + i / heads, head = i % heads;
        const int splits = SplitsOf(p.cache.kv_lens[s] - rows + i / heads + 1);
        MergeSplits(plan, partials + row * row_floats + head * max_splits * StateFloats(plan),
                    splits, p.out + (row * heads + head) * plan.spec().head_dim);
      }
    };
    constexpr int kFewRows = 8;  // not worth waking a thread
    if (rows <= kFewRows) {
      merge(0, int64_t{rows} * heads, 0);
    } else {
      pool.ParallelFor(int64_t{rows} * heads, heads, merge);
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
  const bool use_amx = spec.path == AttentionPath::kReconstruct && RequestAmx();
  return std::make_unique<CpuAttentionPlan>(spec, use_amx);
}

void CpuAttention(ThreadPool& pool, Scratch& scratch, const AttentionParams& p) {
  const CpuAttentionPlan& plan = PlanOf(p.plan);
  CheckCache(plan, p.cache);
  const Schedule schedule(plan, p.cache, pool.num_threads());
  float* partials =
      schedule.by_split() ? scratch.Shared<float>(schedule.partial_floats()) : nullptr;
  const int64_t floats = ItemFloats(plan, schedule.max_rows());
  pool.ParallelFor(schedule.items(), 1, [&](int64_t begin, int64_t end, int thread) {
    float* memory = scratch.ForThread<float>(thread, floats);
    for (int64_t n = begin; n < end; ++n) {
      AttendItem(plan, p, schedule.Item(n), memory, partials, schedule.max_splits());
    }
  });
  if (schedule.by_split()) MergeRows(pool, plan, p, schedule.max_splits(), partials);
}

}  // namespace latentd
