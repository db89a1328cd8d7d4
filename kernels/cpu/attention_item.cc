// One pass over the cached blocks of an item. Every tile is made once for all the queries of the
// item, and stays in the first-level cache while they use it.
//
// What bounds it, on one thread of a busy Sapphire Rapids, best of many runs at depth 8192, with 9
// query and 3 KV heads of 64 (peaks in the same hour: fp32 117 GMAC/s; a tile product of AMX, 16 x
// 16 x 64, 4.9 ns). A block is 64 tokens of all KV heads; "7.7x" are 96 K dims and 160 V dims of 4
// and 2 bits in one latent head, with sinks and own page. `attention_bench` has such heads and
// caches, up to a depth of 8000.
//
//   1 row, 16-bit cache     memory: 49 KB a block, 1.9 us = 25 GB/s. From the core's caches 1.4 us,
//                           four fifths of it the two products
//   1 row, 7.7x             arithmetic: 4.3 us a block. Its 116 tile products alone would take 0.57
//                           us (13 %); with their loads and stores they take 29 % of the time, RoPE
//                           13 %, scores 9 %, codes to words 12 %, the rest softmax, the weights'
//                           int8 parts and sums of values
//   1 row, 7.7x absorbed    2.4 us a block; 1.5 us with 96 dims of 4 bits for K and V each
//   512 rows, 16-bit cache  fp32 products: 70 GMAC/s (60 %); 7.7x takes 1.7 times as long, for each
//                           64 rows rebuild the keys

#include "kernels/cpu/attention_item.h"

#include <algorithm>
#include <cmath>

#include "kernels/cache_view.h"
#include "kernels/cpu/attention_memory.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention_item.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/attention_absorbed-inl.h"
#include "kernels/cpu/attention_joint_keys-inl.h"
#include "kernels/cpu/attention_math-inl.h"
#include "kernels/cpu/attention_state-inl.h"
#include "kernels/cpu/attention_values-inl.h"
#include "kernels/cpu/cache_tile-inl.h"
#include "kernels/cpu/key_tile-inl.h"

#ifndef LATENTD_KERNELS_CPU_ATTENTION_ITEM_ONCE
#define LATENTD_KERNELS_CPU_ATTENTION_ITEM_ONCE
namespace latentd {

// Up to so many queries multiply 16-bit tiles straight from the cache; more are served from a tile
// turned fp32 once.
inline constexpr int kDirectQueries = 6;

// Rows of an item: [first, last). Of every row the q heads are neighbours.
struct RowRange {
  int first = 0;
  int last = 0;
  bool empty() const { return first >= last; }
};

}  // namespace latentd
#endif  // once

HWY_BEFORE_NAMESPACE();
namespace latentd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// A tile as the products take it: one of the two is set, or none for values that are multiplied as
// integers.
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
  for (size_t s = 0; s < plane.segments.size(); ++s) {
    decode(plane.segments[s], head + plane.segment_offset(static_cast<int>(s)), out);
    out += plane.segments[s].dims * kBlockTokens;
  }
}

// One item; the members are what its phases share.
class ItemPass {
 public:
  ItemPass(const CpuAttentionPlan& plan, const AttentionParams& p, const AttentionItem& item,
           float* memory)
      : plan_(plan), p_(p), item_(item), m_(plan, item.rows, memory), value_batch_(m_) {
    const CacheView& cache = p.cache;
    const int first_token = cache.cu_q_lens[item.sequence];
    const int q_len = cache.cu_q_lens[item.sequence + 1] - first_token;
    token_row_ = first_token + item.first_row;
    position_ = cache.kv_lens[item.sequence] - q_len + item.first_row;
    end_ = position_ + item.rows;
    blocks_ = cache.block_table.data() + item.sequence * cache.max_blocks;
    first_kv_head_ = item.unit * plan.unit;
  }

  void Run(const PartialStates& partials) {
    const AmxTiles tiles(plan_.use_amx);
    PrepareQueries();
    if (item_.sinks) AttendExactSinks(partials);
    const int first_block = plan_.FirstInPages(position_) / kBlockTokens * kBlockTokens;
    for (int split = item_.first_split; split < item_.last_split; ++split) {
      const int begin = split * kSplitTokens, end = begin + kSplitTokens;
      const RowRange rows = RowsThatSeePages(begin, end);
      if (rows.empty()) continue;
      ResetSums(rows);
      for (int start = std::max(begin, first_block); start < std::min(end, end_);
           start += kBlockTokens) {
        AttendBlock(start);
      }
      FinishSplit(split, rows, partials);
    }
    if (partials.states == nullptr) WriteOutputs();
  }

 private:
  const AttentionSpec& spec() const { return plan_.spec(); }
  // Rows of the item times the query heads of one KV head; q heads of a row are neighbours.
  int queries() const { return m_.queries_per_head; }
  int64_t Index(int h, int query) const { return int64_t{h} * queries() + query; }
  int Head(int h, int query) const {
    return (first_kv_head_ + h) * plan_.q_per_kv + query % plan_.q_per_kv;
  }
  int TokenRow(int query) const { return token_row_ + query / plan_.q_per_kv; }
  int Position(int query) const { return position_ + query / plan_.q_per_kv; }
  const float* Query(int h, int query) const {
    return p_.q + (int64_t{TokenRow(query)} * spec().num_heads + Head(h, query)) * spec().head_dim;
  }
  // Of ALiBi, for scores that are exponents of 2.
  float Slope(int h, int query) const {
    return plan_.slopes.empty() ? 0.0f : plan_.slopes[Head(h, query)];
  }

  // The item's rows that see a position in [begin, end), of the sinks (which only the window takes
  // away) or of pages. A window is a range of positions that moves with its row, so they are
  // neighbours.
  RowRange RowsThatSee(int begin, int end) const {
    if (begin >= end) return {};
    const int64_t window_end = spec().window > 0 ? int64_t{end} + spec().window - 1 : end_;
    const auto last = static_cast<int>(std::min<int64_t>(window_end, end_));
    return {std::max(begin, position_) - position_, last - position_};
  }
  RowRange RowsThatSeePages(int begin, int end) const {
    return RowsThatSee(std::max(begin, spec().cache.sinks), end);
  }

  void PrepareQueries() {
    for (int h = 0; h < plan_.unit; ++h) {
      for (int i = 0; i < queries(); ++i) {
        float* query = m_.queries + Index(h, i) * plan_.query_dims;
        PrepareQuery(Query(h, i), first_kv_head_ + h, query);
        if (!plan_.coded.integer_scores) continue;
        const int64_t row = Index(h % plan_.kv_per_k, i);
        StoreQueryParts(plan_.coded.absorbed, query, static_cast<int>(row % kAmxRows),
                        QueryTile(h / plan_.kv_per_k, row / kAmxRows));
      }
    }
  }

  float* QueryTile(int k_head, int64_t tile) const {
    return m_.query_tiles + (k_head * m_.tiles_per_head + tile) * plan_.coded.absorbed.tile_floats;
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

  void AttendExactSinks(const PartialStates& partials) {
    const int sinks = spec().cache.sinks;
    const RowRange rows = RowsThatSee(0, sinks);
    if (rows.empty()) return;
    const uint16_t* stored = Sinks(spec().cache, p_.cache, item_.sequence);
    for (int h = 0; h < plan_.unit; ++h) {
      DecodeSinks(plan_, stored, first_kv_head_ + h, m_.sinks);
      for (int i = rows.first * plan_.q_per_kv; i < rows.last * plan_.q_per_kv; ++i) {
        const int position = Position(i);
        const TokenRange seen = {plan_.FirstVisible(position), std::min(sinks, position + 1)};
        AttendSinks(plan_, m_.sinks, Query(h, i), seen, Slope(h, i), position,
                    PartState(h, i, partials, 0));
      }
    }
  }

  // Where a part's state goes: the row's own, which the first part starts, or its place in
  // `partials`.
  float* PartState(int h, int query, const PartialStates& partials, int part) const {
    if (partials.states == nullptr) return m_.states + Index(h, query) * StateFloats(plan_);
    const int64_t row = int64_t{TokenRow(query)} * spec().num_heads + Head(h, query);
    return partials.states + (row * partials.max_parts + part) * StateFloats(plan_);
  }

  // For the rows that see the split.
  void ResetSums(RowRange rows) {
    for (int h = 0; h < plan_.unit; ++h) {
      const int64_t from = Index(h, rows.first * plan_.q_per_kv);
      const int64_t to = Index(h, rows.last * plan_.q_per_kv);
      std::fill(m_.sums + from * plan_.v_dims, m_.sums + to * plan_.v_dims, 0.0f);
      std::fill(m_.denominators + from * kSumLanes, m_.denominators + to * kSumLanes, 0.0f);
      std::fill(m_.largest + from, m_.largest + to, -HUGE_VALF);
    }
  }

  const uint8_t* Block(int token) const {
    return p_.cache.layer + int64_t{blocks_[token / kBlockTokens]} * p_.cache.block_bytes;
  }

  // The rows whose own page this is read it there, later ones read its codes.
  void AttendBlock(int start) {
    const int end = start + kBlockTokens;
    RowRange rows = RowsThatSeePages(start, end);
    if (rows.empty()) return;
    if (plan_.pairs > 0) PrepareStartAngles(start);
    if (spec().cache.own_page && position_ + rows.first < end) {
      const RowRange own = {rows.first, std::min(rows.last, end - position_)};
      ahead_ = 0;
      const int64_t page = start / kBlockTokens;
      AttendPage(plan_.own, OwnPage(spec().cache, p_.cache, item_.sequence, page), start, own);
      rows.first = own.last;
    }
    if (rows.empty()) return;
    const uint8_t* block = Block(start);
    ahead_ = end < end_ ? Block(end) - block : 0;
    AttendPage(plan_.coded, block, start, rows);
  }

  void AttendPage(const PageFormat& format, const uint8_t* page, int start, RowRange rows) {
    if (format.integer_scores) {
      for (int k_head = 0; k_head < plan_.unit / plan_.kv_per_k; ++k_head) {
        AttendAbsorbed(format, page, k_head, start, rows);
      }
      return;
    }
    const int first = rows.first * plan_.q_per_kv, last = rows.last * plan_.q_per_kv;
    const int tokens = std::min(kBlockTokens, position_ + rows.last - start);
    for (int h = 0; h < plan_.unit; ++h) {
      if (h % plan_.kv_per_k == 0) PrepareKeys(format, page, h, last - first);
      if (h % plan_.kv_per_v == 0) PrepareValues(format, page, h, tokens, last - first);
      if (plan_.pairs > 0) RebuildKeys(format, h);
      PrepareTokenFactors(format, page, h);
      for (int i = first; i < last; i += kGroupQueries) {
        AttendGroup(h, i, std::min(kGroupQueries, last - i), start);
      }
      if (format.integer_values && (h + 1) % plan_.kv_per_v == 0) value_batch_.Flush();
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

  // `queries` of every KV head meet the keys.
  void PrepareKeys(const PageFormat& format, const uint8_t* page, int h, int queries) {
    const uint8_t* head = page + (first_kv_head_ + h) / plan_.kv_per_k * format.k_head_bytes;
    if (plan_.pairs > 0) {
      FetchHead(head, format.k_head_bytes);
      const auto decode = format.joint_keys ? DecodeJointSource : DecodeKeySources;
      decode(format, head, m_.key_sources);
      keys_ = {.fp32 = m_.keys};
      return;
    }
    keys_ = DirectTile(format.layer.k, head, plan_.kv_per_k * queries);
    if (keys_.fp32 != nullptr || keys_.fp16 != nullptr) return;
    FetchHead(head, format.k_head_bytes);
    ForSegments(format.layer.k, head, m_.keys, DecodeKeys);
    keys_ = {.fp32 = m_.keys};
  }

  void RebuildKeys(const PageFormat& format, int h) {
    const int kv_head = first_kv_head_ + h;
    if (format.joint_keys) {
      RebuildJointKeys(plan_, format, kv_head, m_.key_sources, m_.keys);
      pair_scales_ = format.joint.scales.data() + int64_t{kv_head} * plan_.pairs;
    } else {
      RebuildSegmentKeys(plan_, format, kv_head, m_.key_sources, m_.keys);
      pair_scales_ = nullptr;
    }
  }

  // What the tokens' scores are still to be multiplied with.
  void PrepareTokenFactors(const PageFormat& format, const uint8_t* page, int h) {
    has_token_factors_ = format.joint_keys || spec().cache.key_norms > 0;
    if (spec().cache.key_norms > 0) {
      const int64_t head_bytes = int64_t{sizeof(uint16_t)} * kBlockTokens;
      HalvesToFloats(page + format.key_norm_offset + (first_kv_head_ + h) * head_bytes,
                     kBlockTokens, token_factors_);
      if (format.joint_keys) ScaleScores(m_.key_sources, token_factors_);
    } else if (format.joint_keys) {
      std::copy_n(m_.key_sources, kBlockTokens, token_factors_);
    }
  }

  // Fetches a latent head's bytes of the next block, which are few beside the work on this one.
  void FetchHead(const uint8_t* head, int64_t bytes) const {
    constexpr int64_t kLine = 64;
    for (int64_t i = 0; ahead_ != 0 && i < bytes; i += kLine)
      __builtin_prefetch(head + ahead_ + i, 0, 2);
  }

  void PrepareValues(const PageFormat& format, const uint8_t* page, int h, int tokens,
                     int queries) {
    const uint8_t* head =
        page + format.v_plane_offset + (first_kv_head_ + h) / plan_.kv_per_v * format.v_head_bytes;
    values_ = {};
    if (format.integer_values) {
      FetchHead(head, format.v_head_bytes);
      value_batch_.SetPage(format, head);
      return;
    }
    values_ = DirectTile(format.layer.v, head, plan_.kv_per_v * queries);
    if (values_.fp32 != nullptr || values_.fp16 != nullptr) return;
    FetchHead(head, format.v_head_bytes);
    ForSegments(format.layer.v, head, m_.values,
                [tokens](const Segment& segment, const uint8_t* from, float* out)
                    HWY_ATTR { DecodeValues(segment, from, tokens, out); });
    values_ = {.fp32 = m_.values};
  }

  // All queries of a latent head (of K and of V) against the codes of the page at `start`.
  void AttendAbsorbed(const PageFormat& format, const uint8_t* page, int k_head, int start,
                      RowRange rows) {
    const int first_head = k_head * plan_.kv_per_k;
    const uint8_t* head = page + (first_kv_head_ / plan_.kv_per_k + k_head) * format.k_head_bytes;
    FetchHead(head, format.k_head_bytes);
    DecodeAbsorbedKeys(format, head, m_.key_sources);
    PrepareValues(format, page, first_head, kBlockTokens, 0);
    const int64_t last = int64_t{plan_.kv_per_k} * queries();
    for (int64_t first = 0; first < last; first += kAmxRows) {
      bool scored = false;
      for (int64_t row = first; row < std::min(first + kAmxRows, last); ++row) {
        const auto h = static_cast<int>(first_head + row / queries());
        const auto query = static_cast<int>(row % queries());
        const int item_row = query / plan_.q_per_kv;
        if (item_row < rows.first || item_row >= rows.last) continue;
        if (!scored) {
          const auto used = static_cast<int>(std::min<int64_t>(last - first, kAmxRows));
          ScoreTile(format.absorbed, QueryTile(k_head, first / kAmxRows), used, m_.key_sources,
                    m_.scores);
          scored = true;
        }
        float* scores = m_.scores + (row - first) * kBlockTokens;
        const float decay = Soften(h, query, start, scores);
        value_batch_.Add(scores, decay, m_.sums + Index(h, query) * plan_.v_dims);
      }
    }
    value_batch_.Flush();
  }

  // The tokens of the page at `start` that a query sees.
  TokenRange Seen(int query, int start) const {
    const int position = Position(query);
    return {std::max(0, plan_.FirstInPages(position) - start),
            std::min(kBlockTokens, position + 1 - start)};
  }

  // Scores to weights, in the query's softmax; returns what its earlier weights are worth now.
  float Soften(int h, int query, int start, float* scores) {
    if (!plan_.slopes.empty()) AddSlope(Slope(h, query), start - Position(query), scores);
    return UpdateSoftmax(scores, Seen(query, start), m_.largest + Index(h, query),
                         m_.denominators + Index(h, query) * kSumLanes);
  }

  // Queries [first, first + count) of KV head h against the tile of the page at `start`.
  void AttendGroup(int h, int first, int count, int start) {
    const int64_t index = Index(h, first);
    const float* q = m_.queries + index * plan_.query_dims;
    if (plan_.pairs > 0) {
      RotateBack(q, count, plan_.pairs, m_.start_cos, m_.start_sin, pair_scales_, m_.rotated);
      q = m_.rotated;
    }
    const int64_t stride = plan_.query_dims;
    if (keys_.fp16 != nullptr) {
      MultiplyRows(q, stride, count, keys_.fp16, plan_.query_dims, false, ahead_, m_.scores);
    } else {
      MultiplyRows(q, stride, count, keys_.fp32, plan_.query_dims, false, ahead_, m_.scores);
    }
    TokenRange seen[kGroupQueries];
    float decay[kGroupQueries];
    for (int i = 0; i < count; ++i) {
      float* scores = m_.scores + i * kBlockTokens;
      if (has_token_factors_) ScaleScores(token_factors_, scores);
      seen[i] = Seen(first + i, start);
      decay[i] = Soften(h, first + i, start, scores);
    }
    float* sums = m_.sums + index * plan_.v_dims;
    if (values_.fp16 == nullptr && values_.fp32 == nullptr) {
      for (int i = 0; i < count; ++i) {
        value_batch_.Add(m_.scores + i * kBlockTokens, decay[i], sums + int64_t{i} * plan_.v_dims);
      }
      return;
    }
    if (values_.fp16 != nullptr) {
      AddValues(m_.scores, decay, seen, count, values_.fp16, plan_.v_dims, ahead_, sums);
    } else {
      AddValues(m_.scores, decay, seen, count, values_.fp32, plan_.v_dims, ahead_, sums);
    }
  }

  // The split's sums in head_dim space, folded into the row's state or left in `partials`.
  void FinishSplit(int split, RowRange rows, const PartialStates& partials) {
    for (int i = rows.first * plan_.q_per_kv; i < rows.last * plan_.q_per_kv; ++i) {
      const CpuAttentionPlan::Parts parts = plan_.PartsOf(Position(i));
      const bool first = split == parts.first_split && !parts.sinks;
      for (int h = 0; h < plan_.unit; ++h) {
        float* state = PartState(h, i, partials, 1 + split - partials.first_split);
        if (partials.states != nullptr || first) {
          WriteState(h, i, state);
        } else {
          float* last = m_.states + Index(plan_.unit, 0) * StateFloats(plan_);
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
    const float total = SumOfDenominators(m_.denominators + index * kSumLanes);
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

  // Of the current page.
  int64_t ahead_ = 0;                   // bytes from a block to the next, 0 after the last
  const float* pair_scales_ = nullptr;  // of the rebuilt keys
  bool has_token_factors_ = false;
  alignas(64) float token_factors_[kBlockTokens];
  TileView keys_;
  TileView values_;
  ValueBatch value_batch_;
};

void AttendItemImpl(const CpuAttentionPlan& plan, const AttentionParams& p,
                    const AttentionItem& item, float* memory, const PartialStates& partials) {
  ItemPass(plan, p, item, memory).Run(partials);
}

void MergePartsImpl(const CpuAttentionPlan& plan, float* states, int parts, float* out) {
  for (int i = 1; i < parts; ++i) {
    FoldState(states + i * StateFloats(plan), plan.value_dims, states);
  }
  WriteOutput(plan, states, out);
}

}  // namespace HWY_NAMESPACE
}  // namespace latentd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace latentd {

HWY_EXPORT(AttendItemImpl);
HWY_EXPORT(MergePartsImpl);

int64_t ItemFloats(const CpuAttentionPlan& plan, int rows) {
  return ItemMemory(plan, rows, nullptr).used;
}

void AttendItem(const CpuAttentionPlan& plan, const AttentionParams& p, const AttentionItem& item,
                float* memory, const PartialStates& partials) {
  HWY_DYNAMIC_DISPATCH(AttendItemImpl)(plan, p, item, memory, partials);
}

void MergeParts(const CpuAttentionPlan& plan, float* states, int parts, float* out) {
  HWY_DYNAMIC_DISPATCH(MergePartsImpl)(plan, states, parts, out);
}

}  // namespace latentd
#endif  // HWY_ONCE
