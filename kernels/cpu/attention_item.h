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
  bool sinks = false;   // the exact sinks, too
  int first_split = 0;  // splits [first_split, last_split), as far as the rows see them
  int last_split = 0;
};

// Where an item leaves the parts (CpuAttentionPlan::PartsOf) of its rows: the sinks' state at
// states[((row of the step) * num_heads + head) * max_parts], split s's at 1 + s - first_split
// behind it.
struct PartialStates {
  float* states = nullptr;
  int max_parts = 0;
  int first_split = 0;  // the first that a row of the item's sequence sees
};

// A softmax over a part of what a row sees, for one head: values[value_dims] (sums weighted by
// 2^(score - largest)), then the largest score and the sum of weights. Parts are folded from left
// to right, whoever computed them.
inline int64_t StateFloats(const CpuAttentionPlan& plan) { return plan.value_dims + 16; }

// Floats of working memory for an item of `rows` rows.
int64_t ItemFloats(const CpuAttentionPlan& plan, int rows);

// Attends from the item's rows. Without `partials.states` it folds all parts (the item has them
// all) and writes p.out; otherwise it writes every part's state there.
void AttendItem(const CpuAttentionPlan& plan, const AttentionParams& p, const AttentionItem& item,
                float* memory, const PartialStates& partials);

// Folds `parts` states, one after the other in memory, and writes out[head_dim].
void MergeParts(const CpuAttentionPlan& plan, float* states, int parts, float* out);

}  // namespace latentd
