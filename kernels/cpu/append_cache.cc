// Which bytes a step's rows go to: their blocks, their own pages, the sinks of their seats, and the
// inverse norms of their keys. Rows are written by different threads; what a sequence has once (the
// move of its page, its sinks) is written before them. Finding scales bounds it (encode_row.cc): a
// row of 128 + 160 latent dims takes 0.85 us on a thread of Sapphire Rapids, 0.95 us with its own
// page, a full row of 384 fp16 values 0.16 us; norms are extra (key_norm.cc).

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "absl/types/span.h"
#include "base/check.h"
#include "kernels/cache_view.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/key_norm.h"
#include "kernels/cpu/pack_row.h"

namespace latentd {
namespace {

// Where one token goes: a block or an own page.
struct TokenPlace {
  const float* k = nullptr;
  const float* v = nullptr;
  uint8_t* page = nullptr;
  int token = 0;
};

// Writes tokens of pages of one format.
class PageWriter {
 public:
  PageWriter(const CpuAttentionPlan& plan, const PageFormat& format)
      : plan_(plan), format_(format) {}

  // At most kKeyNormTokens.
  void Write(absl::Span<const TokenPlace> places) const {
    const CachePlane& k = format_.layer.k;
    const CachePlane& v = format_.layer.v;
    for (int head = 0; head < k.latent_heads; ++head) WriteKeyHead(head, places);
    for (const TokenPlace& place : places) {
      uint8_t* at = place.page + format_.v_plane_offset;
      for (int head = 0; head < v.latent_heads; ++head) {
        WriteHead(v, plan_.v_dims, place.v, head, place.token, at, nullptr);
        at += format_.v_head_bytes;
      }
    }
  }

 private:
  void WriteKeyHead(int head, absl::Span<const TokenPlace> places) const {
    const CachePlane& k = format_.layer.k;
    const bool norms = format_.layer.key_norms > 0;
    alignas(64) float latents[kKeyNormTokens * kMaxRowDims];  // [places][k_dims]
    for (size_t i = 0; i < places.size(); ++i) {
      uint8_t* at = places[i].page + head * format_.k_head_bytes;
      WriteHead(k, plan_.k_dims, places[i].k, head, places[i].token, at,
                norms ? latents + i * plan_.k_dims : nullptr);
    }
    if (!norms) return;
    for (int kv_head = head * plan_.kv_per_k; kv_head < (head + 1) * plan_.kv_per_k; ++kv_head) {
      WriteNorms(kv_head, latents, places);
    }
  }

  // A head's row, padded with zeros where a full cache rounds its dims up.
  void WriteHead(const CachePlane& plane, int dims, const float* row, int head, int token,
                 uint8_t* at, float* decoded) const {
    const bool full = plan_.spec().path == AttentionPath::kFull;
    const int values = full ? plan_.spec().head_dim : dims;
    const float* from = row + static_cast<int64_t>(head) * values;
    if (values == dims) return PackRow(plane, from, token, at, decoded);
    float padded[kMaxRowDims];
    std::copy_n(from, values, padded);
    std::fill(padded + values, padded + dims, 0.0f);
    PackRow(plane, padded, token, at, decoded);
  }

  void WriteNorms(int kv_head, const float* latents, absl::Span<const TokenPlace> places) const {
    const AttentionSpec& spec = plan_.spec();
    const int64_t first_row = static_cast<int64_t>(kv_head) * spec.head_dim;
    uint16_t norms[kKeyNormTokens];
    InverseKeyNorms({.k_up = plan_.norm_k_up.data() + first_row * plan_.k_dims,
                     .k_bias = plan_.norm_k_bias.data() + first_row,
                     .head_dim = spec.head_dim,
                     .dims = plan_.k_dims,
                     .epsilon = spec.k_norm_epsilon},
                    latents, plan_.k_dims, static_cast<int>(places.size()), norms);
    const int64_t offset = format_.layer.key_norm_offset(kv_head);
    for (size_t i = 0; i < places.size(); ++i) {
      std::memcpy(places[i].page + offset + 2 * places[i].token, &norms[i], sizeof(norms[i]));
    }
  }

  const CpuAttentionPlan& plan_;
  const PageFormat& format_;
};

// Where the step's rows lie.
class RowPlaces {
 public:
  RowPlaces(const CacheLayer& layer, const AppendCacheParams& p) : layer_(layer), p_(p) {}

  TokenPlace InBlock(int64_t row) const {
    const int64_t slot = p_.cache.slots[row];
    LATENTD_CHECK(slot >= 0);
    return At(row, p_.cache.layer + slot / kBlockTokens * p_.cache.block_bytes);
  }
  TokenPlace InOwnPage(int64_t row) const {
    const auto ends = p_.cache.cu_q_lens.subspan(1);
    const int64_t i = std::upper_bound(ends.begin(), ends.end(), row) - ends.begin();
    const int64_t position = p_.cache.kv_lens[i] - (ends[i] - row);
    return At(row, OwnPage(layer_, p_.cache, i, position / kBlockTokens));
  }

 private:
  TokenPlace At(int64_t row, uint8_t* page) const {
    return {.k = p_.k + row * p_.k_stride,
            .v = p_.v + row * p_.v_stride,
            .page = page,
            .token = static_cast<int>(p_.cache.slots[row] % kBlockTokens)};
  }

  const CacheLayer& layer_;
  const AppendCacheParams& p_;
};

// What a sequence's rows leave once in its seat: the move of the page that they continue, and the
// sinks among them. Returns the row of sink_k and sink_v after the sequence's last.
int64_t WriteSeat(const CacheLayer& layer, const AppendCacheParams& p, int64_t i,
                  int64_t sink_row) {
  const int64_t rows = p.cache.cu_q_lens[i + 1] - p.cache.cu_q_lens[i];
  if (rows == 0) return sink_row;
  const int64_t first_position = p.cache.kv_lens[i] - rows;
  if (layer.own_page && first_position % kBlockTokens != 0) {
    const PageRange pages = PagesOfRows(p.cache, i);
    if (pages.first != pages.last) {
      std::memcpy(OwnPage(layer, p.cache, i, pages.first), OwnPage(layer, p.cache, i, pages.last),
                  layer.own_page_bytes());
    }
  }
  const int64_t end = std::min<int64_t>(layer.sinks, p.cache.kv_lens[i]);
  if (first_position >= end) return sink_row;
  const int64_t dims = layer.sink_dims, count = (end - first_position) * dims;
  uint16_t* keys = Sinks(layer, p.cache, i) + first_position * dims;
  PackHalves(p.sink_k + sink_row * dims, count, keys);
  PackHalves(p.sink_v + sink_row * dims, count, keys + layer.sinks * dims);
  return sink_row + end - first_position;
}

}  // namespace

void CpuAppendCache(ThreadPool& pool, const AppendCacheParams& p) {
  LATENTD_CHECK(p.plan != nullptr);
  const auto& plan = static_cast<const CpuAttentionPlan&>(*p.plan);
  const CacheLayer& layer = plan.spec().cache;
  const CacheView& cache = p.cache;
  CheckView(layer, cache);
  LATENTD_CHECK(std::ssize(cache.slots) == cache.cu_q_lens.back());
  if (layer.sequence_bytes() > 0) {
    int64_t sink_row = 0;
    for (int64_t i = 0; i < std::ssize(cache.kv_lens); ++i) {
      sink_row = WriteSeat(layer, p, i, sink_row);
    }
  }
  const PageWriter coded(plan, plan.coded), own(plan, plan.own);
  const RowPlaces places(layer, p);
  const auto append = [&](int64_t begin, int64_t end, int) {
    TokenPlace tokens[kKeyNormTokens];
    for (int64_t row = begin; row < end; row += kKeyNormTokens) {
      const int64_t count = std::min<int64_t>(kKeyNormTokens, end - row);
      for (int64_t n = 0; n < count; ++n) tokens[n] = places.InBlock(row + n);
      coded.Write(absl::MakeConstSpan(tokens, count));
      if (!layer.own_page) continue;
      for (int64_t n = 0; n < count; ++n) tokens[n] = places.InOwnPage(row + n);
      own.Write(absl::MakeConstSpan(tokens, count));
    }
  };
  const int64_t rows = std::ssize(cache.slots);
  constexpr int kFewRows = 4;  // not worth waking a thread
  if (rows <= kFewRows) {
    append(0, rows, 0);
  } else {
    pool.ParallelFor(rows, pool.Grain(rows), append);
  }
}

}  // namespace latentd
