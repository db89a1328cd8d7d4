#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cpu/amx_product.h"
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
    if (plan.coded.integer_scores) {
      tiles_per_head = (plan.kv_per_k * queries_per_head + kAmxRows - 1) / kAmxRows;
      query_tiles =
          Take(plan.unit / plan.kv_per_k * tiles_per_head * plan.coded.absorbed.tile_floats);
    }
    sums = Take(all * plan.v_dims);
    denominators = Take(all * 16);
    largest = Take(all);
    states = Take((all + 1) * StateFloats(plan));
    values = Take(plan.v_dims * kBlockTokens);
    key_sources = Take(std::max(plan.coded.key_source_floats, plan.own.key_source_floats));
    keys = Take(key_rows * kBlockTokens);
    rotated = Take(kGroupQueries * plan.query_dims);
    scores = Take(std::max(kGroupQueries, kAmxRows) * kBlockTokens);
    start_cos = Take(plan.pairs);
    start_sin = Take(plan.pairs);
    const int64_t v_segments = std::ssize(plan.spec().cache.v.segments);
    value_words = TakeBytes<uint8_t>(plan.v_dims * kBlockTokens);
    value_scales = Take(v_segments * 2 * kBlockTokens);
    value_parts = TakeBytes<int8_t>(v_segments * 2 * kAmxRows * kBlockTokens);
    value_rows = Take(v_segments * 2 * kAmxRows);
    sinks = Take(2 * plan.spec().cache.sinks * int64_t{plan.value_dims});
  }

  float* Take(int64_t floats) {
    float* taken = base == nullptr ? nullptr : base + used;
    used += (floats + 15) / 16 * 16;
    return taken;
  }

  template <typename T>
  T* TakeBytes(int64_t bytes) {
    return reinterpret_cast<T*>(Take((bytes + 3) / 4));
  }

  int queries_per_head;
  float* queries;  // [unit][queries_per_head][query_dims], times query_scale
  // AbsorbedKeys: tiles of 16 queries, [unit / kv_per_k][tiles_per_head].
  int64_t tiles_per_head = 0;
  float* query_tiles = nullptr;
  float* sums;          // [unit][queries_per_head][v_dims] of the current split
  float* denominators;  // [unit][queries_per_head][16]
  float* largest;       // [unit][queries_per_head]
  float* states;        // [unit][queries_per_head] folded parts, and one more: the part that ends
  float* values;        // [v_dims / 16][64][16] of a page's V latent head
  float* key_sources;
  float* keys;       // [rows][64]
  float* rotated;    // [kGroupQueries][query_dims]
  float* scores;     // [kGroupQueries or kAmxRows][64]
  float* start_cos;  // [pairs]
  float* start_sin;
  // ValueBatch: of a page's V latent head; of the rows that wait.
  uint8_t* value_words;  // [v_dims / 16][16][16 dims][4 tokens]
  float* value_scales;   // [segments][scale, offset][64]
  int8_t* value_parts;   // [segments][2][kAmxRows][64]
  float* value_rows;     // [segments][scale, offset][kAmxRows]
  float* sinks;          // one KV head's exact sinks: keys [sinks][value_dims], then values
  float* base;
  int64_t used = 0;
};

}  // namespace latentd
