#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/attention_plan.h"
#include "kernels/params.h"

namespace latentd {

// The unit of attention work: some query rows of one sequence, the heads of one unit of KV heads
// (CpuAttentionPlan::unit), a range of splits. Reads the cache once for all of its queries.
struct AttentionItem {
  int sequence = 0;
  int unit = 0;       // KV heads [unit * plan.unit, (unit + 1) * plan.unit)
  int first_row = 0;  // of the sequence's rows in this step
  int rows = 0;
  int first_split = 0;  // splits [first_split, last_split)
  int last_split = 0;
};

// A softmax over some tokens, for one query row and head: values[value_dims] (sums weighted by
// 2^(score - largest)), then the largest score and the sum of weights. Splits are folded from left
// to right, whoever computed them.
inline int64_t StateFloats(const CpuAttentionPlan& plan) { return plan.value_dims + 16; }

// Floats of working memory for an item of `rows` rows.
int64_t ItemFloats(const CpuAttentionPlan& plan, int rows);

// Attends from the item's rows. `partials` null: folds all splits (the item has them all) and
// writes p.out. Otherwise writes every split's state to partials[((row of the step) * num_heads +
// head) * max_splits + split].
void AttendItem(const CpuAttentionPlan& plan, const AttentionParams& p, const AttentionItem& item,
                float* memory, float* partials, int max_splits);

// Folds `splits` states, one after the other in memory, and writes out[head_dim].
void MergeSplits(const CpuAttentionPlan& plan, float* states, int splits, float* out);

}  // namespace latentd
