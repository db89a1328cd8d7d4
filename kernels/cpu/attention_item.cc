// One pass over the cached blocks of an item. Every tile is made once for all the queries of the
// item, and stays in the first-level cache while they use it.
//
// What bounds it, measured with attention_bench on one thread of a busy Sapphire Rapids (peaks in
// the same minutes: fp32 117 GMAC/s, read 14 GB/s) with 9 query and 3 KV heads of 64. A block is 64
// tokens of all KV heads.
//
//   512 rows at depth 4096  fp32 products: 70 GMAC/s (60 %) on a 16-bit cache, 56 on 4-bit latents
//   1 row, 16-bit cache     memory: 49 KB a block at 11 GB/s (78 %). From the core's caches 1.7 us
//                           a block, four fifths of it the two products
//   1 row, 4-bit latents    arithmetic: 7 KB and 5.6 us a block in one group of 96 dims, 4.6 us in
//                           three of 32. A quarter is AMX, a fifth scales and RoPE, the rest
//                           values, scores and softmax

#include "kernels/cpu/attention_item.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_item.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/attention_math-inl.h"
#include "kernels/cpu/cache_tile-inl.h"
#include "kernels/cpu/key_tile-inl.h"

#ifndef LATENTD_KERNELS_CPU_ATTENTION_ITEM_ONCE
#define LATENTD_KERNELS_CPU_ATTENTION_ITEM_ONCE
namespace latentd {

// Queries that go through scores, softmax and values together, while their scores are in the
// first-level cache.
inline constexpr int kGroupQueries = 12;

// Up to so many queries multiply 16-bit tiles straight from the cache; more are served from a tile
// turned fp32 once.
inline constexpr int kDirectQueries = 6;

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
    key_sources = Take(plan.key_source_floats);
    keys = Take(key_rows * kBlockTokens);
    rotated = Take(kGroupQueries * plan.query_dims);
    scores = Take(kGroupQueries * kBlockTokens);
    start_cos = Take(plan.pairs);
    start_sin = Take(plan.pairs);
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
  float* states;        // [unit][queries_per_head] folded splits, and one more: the split that ends
  float* values;        // [unit / kv_per_v][v_dims / 16][64][16]
  float* key_sources;
  float* keys;       // [rows][64]
  float* rotated;    // [kGroupQueries][query_dims]
  float* scores;     // [kGroupQueries][64]
  float* start_cos;  // [pairs]
  float* start_sin;
  float* base;
  int64_t used = 0;
};

}  // namespace latentd
#endif  // once

HWY_BEFORE_NAMESPACE();
namespace latentd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// A tile as the products take it: one of the two is set.
struct TileView {
  const float* fp32 = nullptr;
  const hwy::float16_t* fp16 = nullptr;
};

// The plane's tile where it lies, if it can be multiplied as it is.
inline TileView DirectTile(const CachePlane& plane, const uint8_t* head, int queries) {
  if (plane.segments.size() != 1) return {};
  const Codec codec = plane.segments[0].codec;
  if (codec == Codec::kF32) return {.fp32 = reinterpret_cast<const float*>(head)};
  if (codec == Codec::kF16 && queries <= kDirectQueries) {
    return {.fp16 = reinterpret_cast<const hwy::float16_t*>(head)};
  }
  return {};
}

template <class Decode>
HWY_INLINE void ForSegments(const CachePlane& plane, const uint8_t* head, float* out,
                            Decode decode) {
  for (const Segment& segment : plane.segments) {
    decode(segment, head, out);
    head += segment.dims / kTileDims * TileBytes(segment.codec) +
            kBlockTokens * Info(segment.codec).scale_bytes;
    out += segment.dims * kBlockTokens;
  }
}

// state = state and then split. Both are [value_dims | largest, sum of weights].
inline void FoldState(const float* split, int dims, float* state) {
  const DF df;
  const float largest = std::max(state[dims], split[dims]);
  const float a = Exp2(state[dims] - largest), b = Exp2(split[dims] - largest);
  const VF a_lanes = hn::Set(df, a), b_lanes = hn::Set(df, b);
  for (int d = 0; d < dims; d += kLanes) {
    const VF kept = hn::Mul(a_lanes, hn::Load(df, state + d));
    hn::Store(hn::MulAdd(b_lanes, hn::Load(df, split + d), kept), df, state + d);
  }
  state[dims + 1] = a * state[dims + 1] + b * split[dims + 1];
  state[dims] = largest;
}

inline void WriteOutput(const CpuAttentionPlan& plan, const float* state, float* out) {
  const float inverse = 1.0f / state[plan.value_dims + 1];
  for (int d = 0; d < plan.spec().head_dim; ++d) out[d] = state[d] * inverse;
}

// One item; the members are what its phases share.
class ItemPass {
 public:
  ItemPass(const CpuAttentionPlan& plan, const AttentionParams& p, const AttentionItem& item,
           float* memory)
      : plan_(plan), p_(p), item_(item), m_(plan, item.rows, memory) {
    const CacheView& cache = p.cache;
    const int first_token = cache.cu_q_lens[item.sequence];
    const int q_len = cache.cu_q_lens[item.sequence + 1] - first_token;
    token_row_ = first_token + item.first_row;
    position_ = cache.kv_lens[item.sequence] - q_len + item.first_row;
    end_ = position_ + item.rows;
    blocks_ = cache.block_table.data() + item.sequence * cache.max_blocks;
    first_kv_head_ = item.unit * plan.unit;
  }

  void Run(float* partials, int max_splits) {
    const AmxTiles tiles(plan_.use_amx);
    PrepareQueries();
    for (int split = item_.first_split; split < item_.last_split; ++split) {
      const int begin = split * kSplitTokens;
      const int first_row = std::max(0, begin - position_);
      ResetSums(first_row);
      for (int start = begin; start < std::min(begin + kSplitTokens, end_); start += kBlockTokens) {
        AttendBlock(start);
      }
      FinishSplit(split, first_row, partials, max_splits);
    }
    if (partials == nullptr) WriteOutputs();
  }

 private:
  const CachePlane& k_plane() const { return plan_.spec().cache.k; }
  const CachePlane& v_plane() const { return plan_.spec().cache.v; }
  // Rows of the item times the query heads of one KV head; q heads of a row are neighbours.
  int queries() const { return m_.queries_per_head; }
  int64_t Index(int h, int query) const { return int64_t{h} * queries() + query; }
  int Head(int h, int query) const {
    return (first_kv_head_ + h) * plan_.q_per_kv + query % plan_.q_per_kv;
  }
  int TokenRow(int query) const { return token_row_ + query / plan_.q_per_kv; }

  void PrepareQueries() {
    const AttentionSpec& spec = plan_.spec();
    for (int h = 0; h < plan_.unit; ++h) {
      for (int i = 0; i < queries(); ++i) {
        const float* q =
            p_.q + (int64_t{TokenRow(i)} * spec.num_heads + Head(h, i)) * spec.head_dim;
        PrepareQuery(q, first_kv_head_ + h, m_.queries + Index(h, i) * plan_.query_dims);
      }
    }
  }

  void PrepareQuery(const float* q, int kv_head, float* to) {
    const int head_dim = plan_.spec().head_dim;
    if (plan_.spec().path == AttentionPath::kAbsorbed) {
      MultiplyMatrix(q, head_dim,
                     plan_.k_up_absorbed.data() + int64_t{kv_head} * head_dim * plan_.k_dims,
                     plan_.k_dims, to);
      return;
    }
    if (plan_.spec().path == AttentionPath::kFull) {
      for (int d = 0; d < head_dim; ++d) to[d] = q[d] * plan_.query_scale;
      std::fill(to + head_dim, to + plan_.query_dims, 0.0f);
      return;
    }
    for (int r = 0; r < plan_.query_dims; ++r) {
      const int dim = plan_.dim_of_row[r];
      to[r] = dim >= 0 ? q[dim] * plan_.query_scale : 0.0f;
    }
  }

  // For the rows that see the split: rows before it have nothing in it.
  void ResetSums(int first_row) {
    for (int h = 0; h < plan_.unit; ++h) {
      const int64_t from = Index(h, first_row * plan_.q_per_kv), to = Index(h, queries());
      std::fill(m_.sums + from * plan_.v_dims, m_.sums + to * plan_.v_dims, 0.0f);
      std::fill(m_.denominators + from * 16, m_.denominators + to * 16, 0.0f);
      std::fill(m_.largest + from, m_.largest + to, -HUGE_VALF);
    }
  }

  const uint8_t* Block(int token) const {
    return p_.cache.layer + int64_t{blocks_[token / kBlockTokens]} * p_.cache.block_bytes;
  }

  void AttendBlock(int start) {
    const uint8_t* block = Block(start);
    ahead_ = start + kBlockTokens < end_ ? Block(start + kBlockTokens) - block : 0;
    const int first_query = std::max(0, start - position_) * plan_.q_per_kv;
    if (plan_.pairs > 0) PrepareStartAngles(start);
    for (int h = 0; h < plan_.unit; ++h) {
      if (h % plan_.kv_per_k == 0) PrepareKeys(block, h);
      if (h % plan_.kv_per_v == 0) PrepareValues(block, h, std::min(kBlockTokens, end_ - start));
      if (plan_.pairs > 0) {
        RebuildKeys(plan_, first_kv_head_ + h, m_.key_sources, m_.keys);
      }
      for (int i = first_query; i < queries(); i += kGroupQueries) {
        AttendGroup(h, i, std::min(kGroupQueries, queries() - i), start);
      }
    }
  }

  void PrepareStartAngles(int start) {
    const RopeTable& rope = *plan_.spec().rope;
    const int64_t row = int64_t{start} * rope.pairs;
    std::copy_n(rope.cos.data() + row, rope.pairs, m_.start_cos);
    std::copy_n(rope.sin.data() + row, rope.pairs, m_.start_sin);
    std::fill(m_.start_cos + rope.pairs, m_.start_cos + plan_.pairs, 1.0f);
    std::fill(m_.start_sin + rope.pairs, m_.start_sin + plan_.pairs, 0.0f);
  }

  void PrepareKeys(const uint8_t* block, int h) {
    const uint8_t* head = block + (first_kv_head_ + h) / plan_.kv_per_k * k_head_bytes_;
    if (plan_.pairs > 0) {
      FetchHead(head, k_head_bytes_);
      DecodeKeySources(plan_, head, m_.key_sources);
      keys_ = {.fp32 = m_.keys};
      return;
    }
    keys_ = DirectTile(k_plane(), head, plan_.kv_per_k * queries());
    if (keys_.fp32 != nullptr || keys_.fp16 != nullptr) return;
    FetchHead(head, k_head_bytes_);
    ForSegments(k_plane(), head, m_.keys, DecodeKeys);
    keys_ = {.fp32 = m_.keys};
  }

  // Fetches a latent head's bytes of the next block, which are few beside the work on this one.
  void FetchHead(const uint8_t* head, int64_t bytes) const {
    constexpr int64_t kLine = 64;
    for (int64_t i = 0; ahead_ != 0 && i < bytes; i += kLine) hwy::Prefetch(head + ahead_ + i);
  }

  void PrepareValues(const uint8_t* block, int h, int tokens) {
    const uint8_t* head =
        block + v_plane_offset_ + (first_kv_head_ + h) / plan_.kv_per_v * v_head_bytes_;
    values_ = DirectTile(v_plane(), head, plan_.kv_per_v * queries());
    if (values_.fp32 != nullptr || values_.fp16 != nullptr) return;
    FetchHead(head, v_head_bytes_);
    ForSegments(v_plane(), head, m_.values,
                [tokens](const Segment& segment, const uint8_t* from, float* out)
                    HWY_ATTR { DecodeValues(segment, from, tokens, out); });
    values_ = {.fp32 = m_.values};
  }

  // Queries [first, first + count) of KV head h against the tile of the block at `start`.
  void AttendGroup(int h, int first, int count, int start) {
    const int64_t index = Index(h, first);
    const float* q = m_.queries + index * plan_.query_dims;
    if (plan_.pairs > 0) {
      RotateBack(q, count, plan_.pairs, m_.start_cos, m_.start_sin, m_.rotated);
      q = m_.rotated;
    }
    const int64_t stride = plan_.query_dims;
    if (keys_.fp16 != nullptr) {
      MultiplyRows(q, stride, count, keys_.fp16, plan_.query_dims, false, ahead_, m_.scores);
    } else {
      MultiplyRows(q, stride, count, keys_.fp32, plan_.query_dims, false, ahead_, m_.scores);
    }
    int tokens[kGroupQueries];
    float decay[kGroupQueries];
    for (int i = 0; i < count; ++i) {
      const int position = position_ + (first + i) / plan_.q_per_kv;
      tokens[i] = std::min(kBlockTokens, position + 1 - start);
      decay[i] = UpdateSoftmax(m_.scores + i * kBlockTokens, tokens[i], m_.largest + index + i,
                               m_.denominators + (index + i) * kSumLanes);
    }
    float* sums = m_.sums + index * plan_.v_dims;
    if (values_.fp16 != nullptr) {
      AddValues(m_.scores, decay, tokens, count, values_.fp16, plan_.v_dims, ahead_, sums);
    } else {
      AddValues(m_.scores, decay, tokens, count, values_.fp32, plan_.v_dims, ahead_, sums);
    }
  }

  // The split's sums in head_dim space, folded into the item's state or left in `partials`.
  void FinishSplit(int split, int first_row, float* partials, int max_splits) {
    const int64_t floats = StateFloats(plan_);
    for (int h = 0; h < plan_.unit; ++h) {
      for (int i = first_row * plan_.q_per_kv; i < queries(); ++i) {
        float* state = m_.states + Index(h, i) * floats;
        if (partials != nullptr) {
          const int64_t row = int64_t{TokenRow(i)} * plan_.spec().num_heads + Head(h, i);
          WriteState(h, i, partials + (row * max_splits + split) * floats);
        } else if (split == 0) {
          WriteState(h, i, state);
        } else {
          float* last = m_.states + Index(plan_.unit, 0) * floats;
          WriteState(h, i, last);
          FoldState(last, plan_.value_dims, state);
        }
      }
    }
  }

  void WriteState(int h, int query, float* state) {
    const DF df;
    const int64_t index = Index(h, query);
    const float* sums = m_.sums + index * plan_.v_dims;
    VF lanes = hn::Zero(df);
    for (int i = 0; i < kSumLanes; i += kLanes) {
      lanes = hn::Add(lanes, hn::Load(df, m_.denominators + index * kSumLanes + i));
    }
    const float total = hn::GetLane(hn::SumOfLanes(df, lanes));
    state[plan_.value_dims] = m_.largest[index];
    state[plan_.value_dims + 1] = total;
    if (plan_.v_up.empty()) {
      std::copy_n(sums, plan_.value_dims, state);
      return;
    }
    const int64_t kv_head = first_kv_head_ + h;
    MultiplyMatrix(sums, plan_.v_dims,
                   plan_.v_up.data() + kv_head * plan_.v_dims * plan_.value_dims, plan_.value_dims,
                   state);
    const float* bias = plan_.v_bias.data() + kv_head * plan_.value_dims;
    for (int d = 0; d < plan_.value_dims; d += kLanes) {
      const VF value = hn::Load(df, state + d);
      hn::Store(hn::MulAdd(hn::Set(df, total), hn::Load(df, bias + d), value), df, state + d);
    }
  }

  void WriteOutputs() {
    const AttentionSpec& spec = plan_.spec();
    for (int h = 0; h < plan_.unit; ++h) {
      for (int i = 0; i < queries(); ++i) {
        WriteOutput(plan_, m_.states + Index(h, i) * StateFloats(plan_),
                    p_.out + (int64_t{TokenRow(i)} * spec.num_heads + Head(h, i)) * spec.head_dim);
      }
    }
  }

  const CpuAttentionPlan& plan_;
  const AttentionParams& p_;
  const AttentionItem& item_;
  ItemMemory m_;
  int token_row_;  // of the item's first row, in the step
  int position_;   // of the item's first row, in the sequence
  int end_;        // position after the last row's
  const int32_t* blocks_;
  int first_kv_head_;
  const int64_t k_head_bytes_ = plan_.spec().cache.k.head_bytes();
  const int64_t v_head_bytes_ = plan_.spec().cache.v.head_bytes();
  const int64_t v_plane_offset_ = plan_.spec().cache.k.plane_bytes();

  int64_t ahead_ = 0;  // bytes from the current block to the next, 0 after the last
  TileView keys_;
  TileView values_;
};

void AttendItemImpl(const CpuAttentionPlan& plan, const AttentionParams& p,
                    const AttentionItem& item, float* memory, float* partials, int max_splits) {
  ItemPass(plan, p, item, memory).Run(partials, max_splits);
}

void MergeSplitsImpl(const CpuAttentionPlan& plan, float* states, int splits, float* out) {
  for (int s = 1; s < splits; ++s) {
    FoldState(states + s * StateFloats(plan), plan.value_dims, states);
  }
  WriteOutput(plan, states, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace latentd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace latentd {

HWY_EXPORT(AttendItemImpl);
HWY_EXPORT(MergeSplitsImpl);

int64_t ItemFloats(const CpuAttentionPlan& plan, int rows) {
  return ItemMemory(plan, rows, nullptr).used;
}

void AttendItem(const CpuAttentionPlan& plan, const AttentionParams& p, const AttentionItem& item,
                float* memory, float* partials, int max_splits) {
  HWY_DYNAMIC_DISPATCH(AttendItemImpl)(plan, p, item, memory, partials, max_splits);
}

void MergeSplits(const CpuAttentionPlan& plan, float* states, int splits, float* out) {
  HWY_DYNAMIC_DISPATCH(MergeSplitsImpl)(plan, states, splits, out);
}

}  // namespace latentd
#endif  // HWY_ONCE
