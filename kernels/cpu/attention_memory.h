#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/attention_item.h"
#include "kernels/cpu/attention_plan.h"

namespace latentd {

// Queries that go through scores, softmax and values together, while their scores are in the
// first-level cache.
inline constexpr int kGroupQueries = 12;

// An item's working memory; without memory, its size. Every area starts at a cache line.
struct ItemMemory {
  ItemMemory(const CpuAttentionPlan& plan, int rows, float* memory) : base(memory) {
    queries_per_head = rows * plan.q_per_kv;
    const int64_t all = int64_t{plan.unit} * queries_per_head;
    const int64_t key_rows = std::max(plan.k_dims, plan.query_dims);
    queries = Take(all * plan.query_dims);
    sums = Take(all * plan.v_dims);
    denominators = Take(all * 16);
    largest = Take(all);
    states = Take((all + 1) * StateFloats(plan));
    values = Take(int64_t{plan.unit / plan.kv_per_v} * plan.v_dims * kBlockTokens);
    key_sources = Take(std::max(plan.coded.key_source_floats, plan.own.key_source_floats));
    keys = Take(key_rows * kBlockTokens);
    rotated = Take(kGroupQueries * plan.query_dims);
    scores = Take(kGroupQueries * kBlockTokens);
    start_cos = Take(plan.pairs);
    start_sin = Take(plan.pairs);
    sinks = Take(2 * plan.spec().cache.sinks * int64_t{plan.value_dims});
  }

  float* Take(int64_t floats) {
    float* taken = base == nullptr ? nullptr : base + used;
    used += (floats + 15) / 16 * 16;
    return taken;
  }

  int queries_per_head;
  float* queries;       // [unit][queries_per_head][query_dims], times query_scale
  float* sums;          // [unit][queries_per_head][v_dims] of the current split
  float* denominators;  // [unit][queries_per_head][16]
  float* largest;       // [unit][queries_per_head]
  float* states;        // [unit][queries_per_head] folded parts, and one more: the part that ends
  float* values;        // [unit / kv_per_v][v_dims / 16][64][16]
  float* key_sources;
  float* keys;       // [rows][64]
  float* rotated;    // [kGroupQueries][query_dims]
  float* scores;     // [kGroupQueries][64]
  float* start_cos;  // [pairs]
  float* start_sin;
  float* sinks;  // one KV head's exact sinks: keys [sinks][value_dims], then values
  float* base;
  int64_t used = 0;
};

}  // namespace latentd
