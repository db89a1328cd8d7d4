#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/cache_view.h"
#include "kernels/dtype.h"
#include "kernels/reference/attention.h"
#include "kernels/reference/cached_row.h"

namespace latentd {
namespace {

// Writes tokens of one layout: the layer's blocks, or own pages.
class RowWriter {
 public:
  RowWriter(const ReferenceAttentionPlan& plan, const CacheLayer& layer)
      : spec_(plan.spec()), layer_(layer), reader_(plan, layer) {}

  void Write(const float* k, const float* v, int token, uint8_t* block) const {
    WritePlane(layer_.k, k, token, block + layer_.k_offset(0, 0));
    WritePlane(layer_.v, v, token, block + layer_.v_offset(0, 0));
    for (int head = 0; head < layer_.key_norms; ++head) {
      const uint16_t norm = InverseNorm(reader_.PlainKey(block, token, head));
      std::memcpy(block + layer_.key_norm_offset(head) + 2 * token, &norm, sizeof(norm));
    }
  }

 private:
  void WritePlane(const CachePlane& plane, const float* row, int token, uint8_t* at) const {
    const int width = spec_.path == AttentionPath::kFull ? spec_.head_dim : plane.dims();
    std::vector<float> values(plane.dims(), 0.0f);
    for (int h = 0; h < plane.latent_heads; ++h) {
      std::copy_n(row + int64_t{h} * width, width, values.begin());
      WriteCacheRow(plane, at + h * plane.head_bytes(), token, values);
    }
  }
  uint16_t InverseNorm(const std::vector<double>& key) const {
    double squares = 0;
    for (const double x : key) squares += x * x;
    const double inverse = 1.0 / std::sqrt(squares / spec_.head_dim + spec_.k_norm_epsilon);
    return FloatToHalf(static_cast<float>(inverse > kMaxKeyNorm ? kMaxKeyNorm : inverse));
  }

  const AttentionSpec& spec_;
  const CacheLayer& layer_;
  const CachedRowReader reader_;
};

void WriteHalves(const float* values, int count, uint16_t* halves) {
  for (int i = 0; i < count; ++i) halves[i] = FloatToHalf(values[i]);
}

// What one sequence's rows leave in its blocks, its seat and the step's pages.
class SequenceWriter {
 public:
  SequenceWriter(const ReferenceAttentionPlan& plan, const AppendCacheParams& p)
      : p_(p),
        layer_(plan.spec().cache),
        own_layer_(layer_.OwnPageLayer()),
        coded_(plan, layer_),
        own_(plan, own_layer_) {}

  // `sink_row`: the first of the sequence's rows of sink_k and sink_v. Returns the row after its
  // last.
  int64_t Write(int64_t i, int64_t sink_row) const {
    const int64_t begin = p_.cache.cu_q_lens[i], end = p_.cache.cu_q_lens[i + 1];
    if (begin == end) return sink_row;
    const int64_t first_position = p_.cache.kv_lens[i] - (end - begin);
    if (layer_.own_page) MovePage(i, first_position);
    for (int64_t t = begin; t < end; ++t) {
      const int64_t position = first_position + t - begin;
      WriteRow(i, t, position);
      if (position < layer_.sinks) WriteSink(i, position, sink_row++);
    }
    return sink_row;
  }

 private:
  // Brings the earlier tokens of the first page to where this step reads it, before the rows of the
  // last page take the seat over.
  void MovePage(int64_t i, int64_t first_position) const {
    const PageRange pages = PagesOfRows(p_.cache, i);
    if (pages.first == pages.last || first_position % kBlockTokens == 0) return;
    std::memcpy(OwnPage(layer_, p_.cache, i, pages.first), OwnPage(layer_, p_.cache, i, pages.last),
                layer_.own_page_bytes());
  }
  void WriteRow(int64_t i, int64_t t, int64_t position) const {
    const int64_t slot = p_.cache.slots[t];
    LATENTD_CHECK(slot >= 0 && slot % kBlockTokens == position % kBlockTokens);
    const float* k = p_.k + t * p_.k_stride;
    const float* v = p_.v + t * p_.v_stride;
    const int token = static_cast<int>(slot % kBlockTokens);
    coded_.Write(k, v, token, p_.cache.layer + slot / kBlockTokens * p_.cache.block_bytes);
    if (!layer_.own_page) return;
    own_.Write(k, v, token, OwnPage(layer_, p_.cache, i, position / kBlockTokens));
  }
  void WriteSink(int64_t i, int64_t position, int64_t sink_row) const {
    const int64_t dims = layer_.sink_dims;
    uint16_t* keys = Sinks(layer_, p_.cache, i);
    uint16_t* values = keys + layer_.sinks * dims;
    WriteHalves(p_.sink_k + sink_row * dims, layer_.sink_dims, keys + position * dims);
    WriteHalves(p_.sink_v + sink_row * dims, layer_.sink_dims, values + position * dims);
  }

  const AppendCacheParams& p_;
  const CacheLayer& layer_;
  const CacheLayer own_layer_;
  const RowWriter coded_, own_;
};

}  // namespace

void ReferenceAppendCache(const AppendCacheParams& p) {
  LATENTD_CHECK(p.plan != nullptr);
  CheckView(p.plan->spec().cache, p.cache);
  const SequenceWriter writer(static_cast<const ReferenceAttentionPlan&>(*p.plan), p);
  int64_t sink_row = 0;
  for (int64_t i = 0; i < std::ssize(p.cache.kv_lens); ++i) sink_row = writer.Write(i, sink_row);
}

}  // namespace latentd
