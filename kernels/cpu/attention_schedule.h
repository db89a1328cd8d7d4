#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/attention_item.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/params.h"

namespace latentd {

// The work of a step in the order in which threads take it: sequence by sequence, the later rows
// (which see more tokens) first. Item n is found without a list.
class AttentionSchedule {
 public:
  AttentionSchedule(const CpuAttentionPlan& plan, const CacheView& cache, int num_threads)
      : plan_(plan),
        cache_(cache),
        units_(plan.spec().num_kv_heads / plan.unit),
        rows_per_item_(RowsPerItem(plan)) {
    int64_t whole = 0, split = 0;
    int most_splits = 0;
    for (int s = 0; s < sequences(); ++s) {
      whole += int64_t{units_} * RowBlocks(s);
      split += int64_t{units_} * RowBlocks(s) * Splits(s);
      most_splits = std::max(most_splits, Splits(s));
      max_rows_ = std::max(max_rows_, std::min(rows_per_item_, QueryRows(s)));
    }
    max_parts_ = 1 + most_splits;
    const int64_t rows = cache.cu_q_lens.back();
    partial_floats_ = rows * plan.spec().num_heads * max_parts_ * StateFloats(plan);
    by_split_ = most_splits > 1 && whole < int64_t{num_threads} * kItemsPerThread &&
                partial_floats_ * int64_t{sizeof(float)} <= kMaxPartialBytes;
    items_ = by_split_ ? split : whole;
  }

  int64_t items() const { return items_; }
  // Every split is an item of its own; parts are merged afterwards.
  bool by_split() const { return by_split_; }
  int64_t partial_floats() const { return partial_floats_; }
  int max_rows() const { return max_rows_; }  // of an item

  int sequences() const { return static_cast<int>(cache_.kv_lens.size()); }
  int QueryRows(int s) const { return cache_.cu_q_lens[s + 1] - cache_.cu_q_lens[s]; }
  // The position of the sequence's first row.
  int FirstPosition(int s) const { return cache_.kv_lens[s] - QueryRows(s); }
  PartialStates Partials(int s, float* states) const {
    return {.states = states, .max_parts = max_parts_, .first_split = FirstSplit(s)};
  }

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
    // NOLINTNEXTLINE(clang-analyzer-core.DivideZero): nothing lies in a sequence without items
    const int split = static_cast<int>(n % split_items);
    const int row_block = RowBlocks(s) - 1 - static_cast<int>(n / split_items);
    item.first_row = row_block * rows_per_item_;
    item.rows = std::min(rows_per_item_, QueryRows(s) - item.first_row);
    const int first = FirstPosition(s) + item.first_row;
    item.first_split = plan_.PartsOf(first).first_split;
    item.last_split = plan_.PartsOf(first + item.rows - 1).last_split;
    item.sinks = !by_split_ || split == 0;
    if (by_split_) {  // the item of a split that its rows do not see is empty
      item.first_split = std::max(item.first_split, FirstSplit(s) + split);
      item.last_split = std::min(item.last_split, FirstSplit(s) + split + 1);
    }
    return item;
  }

 private:
  // Query rows of an item: enough that making the tiles costs little beside using them, few enough
  // that the sums of the item stay in the second-level cache.
  static constexpr int kMaxItemRows = 64;
  static constexpr int64_t kItemBytes = 1 << 20;
  static constexpr int kItemsPerThread = 3;
  static constexpr int64_t kMaxPartialBytes = 64 << 20;

  static int RowsPerItem(const CpuAttentionPlan& plan) {
    int rows = kMaxItemRows;
    while (rows > 1 && ItemFloats(plan, rows) * int64_t{sizeof(float)} > kItemBytes) rows /= 2;
    return rows;
  }

  int RowBlocks(int s) const { return (QueryRows(s) + rows_per_item_ - 1) / rows_per_item_; }
  int SplitItems(int s) const { return by_split_ ? Splits(s) : 1; }
  // The splits that the sequence's rows see, at least one: [FirstSplit, FirstSplit + Splits).
  int FirstSplit(int s) const { return plan_.PartsOf(FirstPosition(s)).first_split; }
  int Splits(int s) const {
    if (QueryRows(s) == 0) return 0;
    return std::max(1, plan_.PartsOf(cache_.kv_lens[s] - 1).last_split - FirstSplit(s));
  }

  const CpuAttentionPlan& plan_;
  const CacheView& cache_;
  const int units_;
  const int rows_per_item_;
  int max_parts_ = 0;
  int max_rows_ = 0;
  int64_t partial_floats_ = 0;
  bool by_split_ = false;
  int64_t items_ = 0;
};

}  // namespace latentd
