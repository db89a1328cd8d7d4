#include "kernels/reference/attention.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/check.h"
#include "kernels/cache_view.h"
#include "kernels/dtype.h"

namespace latentd {
namespace {

std::vector<float> Copy(const float* from, int64_t count) {
  return from == nullptr ? std::vector<float>() : std::vector<float>(from, from + count);
}

// row = up[head] latent + bias[head]; without factors the stored row is the row.
std::vector<double> Rebuild(const std::vector<float>& stored, const float* up, const float* bias,
                            int head_dim) {
  if (up == nullptr) return std::vector<double>(stored.begin(), stored.begin() + head_dim);
  const int64_t dims = static_cast<int64_t>(stored.size());
  std::vector<double> row(head_dim);
  for (int i = 0; i < head_dim; ++i) {
    double sum = bias == nullptr ? 0.0 : bias[i];
    for (int64_t d = 0; d < dims; ++d) sum += static_cast<double>(up[i * dims + d]) * stored[d];
    row[i] = sum;
  }
  return row;
}

void Rotate(const RopeTable& table, int64_t position, std::vector<double>& row) {
  LATENTD_CHECK(position < table.max_positions);
  for (int j = 0; j < table.pairs; ++j) {
    const double cos = table.cos[position * table.pairs + j];
    const double sin = table.sin[position * table.pairs + j];
    const double x = row[j], y = row[j + table.pairs];
    row[j] = x * cos - y * sin;
    row[j + table.pairs] = y * cos + x * sin;
  }
}

// Reads and rebuilds rows of one layout: the layer's blocks, or an own page.
class RowReader {
 public:
  RowReader(const ReferenceAttentionPlan& plan, const CacheLayer& layer)
      : plan_(plan), spec_(plan.spec()), layer_(layer) {}

  // The key of one token before normalisation and RoPE.
  std::vector<double> PlainKey(const uint8_t* block, int token, int kv_head) const {
    const int latent_head = kv_head / (spec_.num_kv_heads / layer_.k.latent_heads);
    return Row(layer_.k, block + layer_.k_offset(0, latent_head), token, kv_head, plan_.k_up(),
               plan_.k_bias());
  }
  std::vector<double> Key(const uint8_t* block, int token, int64_t position, int kv_head) const {
    std::vector<double> key = PlainKey(block, token, kv_head);
    if (!plan_.k_norm().empty()) {
      const double inverse = HalfToFloat(*KeyNorm(const_cast<uint8_t*>(block), token, kv_head));
      for (int i = 0; i < spec_.head_dim; ++i) key[i] *= inverse * plan_.k_norm()[i];
    }
    if (spec_.path == AttentionPath::kReconstruct) Rotate(*spec_.rope, position, key);
    return key;
  }
  std::vector<double> Value(const uint8_t* block, int token, int kv_head) const {
    const int latent_head = kv_head / (spec_.num_kv_heads / layer_.v.latent_heads);
    return Row(layer_.v, block + layer_.v_offset(0, latent_head), token, kv_head, plan_.v_up(),
               plan_.v_bias());
  }
  // Where the inverse norm of a token's key is kept.
  uint16_t* KeyNorm(uint8_t* block, int token, int kv_head) const {
    return reinterpret_cast<uint16_t*>(block + layer_.key_norm_offset(kv_head)) + token;
  }

 private:
  std::vector<double> Row(const CachePlane& plane, const uint8_t* head, int token, int kv_head,
                          const std::vector<float>& up, const std::vector<float>& bias) const {
    const int64_t first_row = int64_t{kv_head} * spec_.head_dim;  // factors of all heads
    std::vector<float> stored(plane.dims());
    ReadCacheRow(plane, head, token, absl::MakeSpan(stored));
    return Rebuild(stored, up.empty() ? nullptr : up.data() + first_row * plane.dims(),
                   bias.empty() ? nullptr : bias.data() + first_row, spec_.head_dim);
  }

  const ReferenceAttentionPlan& plan_;
  const AttentionSpec& spec_;
  const CacheLayer& layer_;
};

struct KeyValue {
  std::vector<double> key, value;  // [head_dim]
};

// What the rows of one sequence see of one KV head. Reads a position when it is first seen.
class SequenceReader {
 public:
  SequenceReader(const ReferenceAttentionPlan& plan, const CacheView& cache, int64_t sequence,
                 int kv_head)
      : spec_(plan.spec()),
        cache_(cache),
        sequence_(sequence),
        kv_head_(kv_head),
        own_layer_(spec_.cache.OwnPageLayer()),
        coded_reader_(plan, spec_.cache),
        own_reader_(plan, own_layer_),
        coded_(cache.kv_lens[sequence]),
        own_(cache.kv_lens[sequence]) {}

  // The key and value at `position` as the row at `row_position` sees them.
  const KeyValue& Seen(int64_t row_position, int64_t position) {
    const bool own = spec_.cache.own_page && position >= spec_.cache.sinks &&
                     position / kBlockTokens == row_position / kBlockTokens;
    KeyValue& seen = (own ? own_ : coded_)[position];
    if (seen.key.empty()) {
      seen = position < spec_.cache.sinks ? ReadSink(position)
             : own                        ? ReadOwn(position)
                                          : ReadCoded(position);
    }
    return seen;
  }

 private:
  KeyValue ReadSink(int64_t position) const {
    const int64_t dims = spec_.cache.sink_dims;
    const uint16_t* keys = Sinks(spec_.cache, cache_, sequence_);
    const uint16_t* values = keys + spec_.cache.sinks * dims;
    const int64_t first = position * dims + int64_t{kv_head_} * spec_.head_dim;
    KeyValue sink;
    for (int64_t i = first; i < first + spec_.head_dim; ++i) {
      sink.key.push_back(HalfToFloat(keys[i]));
      sink.value.push_back(HalfToFloat(values[i]));
    }
    return sink;
  }
  KeyValue ReadOwn(int64_t position) const {
    return Read(own_reader_, OwnPage(spec_.cache, cache_, sequence_, position / kBlockTokens),
                position);
  }
  KeyValue ReadCoded(int64_t position) const {
    LATENTD_CHECK(position / kBlockTokens < cache_.max_blocks);
    const int64_t block =
        cache_.block_table[sequence_ * cache_.max_blocks + position / kBlockTokens];
    LATENTD_CHECK(block >= 0);
    return Read(coded_reader_, cache_.layer + block * cache_.block_bytes, position);
  }
  KeyValue Read(const RowReader& reader, const uint8_t* block, int64_t position) const {
    const int token = static_cast<int>(position % kBlockTokens);
    return {.key = reader.Key(block, token, position, kv_head_),
            .value = reader.Value(block, token, kv_head_)};
  }

  const AttentionSpec& spec_;
  const CacheView& cache_;
  const int64_t sequence_;
  const int kv_head_;
  const CacheLayer own_layer_;
  const RowReader coded_reader_, own_reader_;
  std::vector<KeyValue> coded_, own_;  // by position; empty until seen
};

// out = softmax(softmax_scale * q . keys + slope * (position - row's)) values over the positions
// that the row sees.
void AttendRow(const AttentionSpec& spec, double slope, int64_t row_position, const float* q,
               SequenceReader& reader, float* out) {
  const int64_t first = spec.window > 0 ? std::max<int64_t>(row_position - spec.window + 1, 0) : 0;
  std::vector<double> weights;
  double max = -INFINITY;
  for (int64_t n = first; n <= row_position; ++n) {
    const std::vector<double>& key = reader.Seen(row_position, n).key;
    double score = 0;
    for (int i = 0; i < spec.head_dim; ++i) score += q[i] * key[i];
    weights.push_back(score * spec.softmax_scale + slope * static_cast<double>(n - row_position));
    max = std::max(max, weights.back());
  }
  double total = 0;
  for (double& weight : weights) total += weight = std::exp(weight - max);
  std::vector<double> sums(spec.head_dim, 0.0);
  for (int64_t n = first; n <= row_position; ++n) {
    const std::vector<double>& value = reader.Seen(row_position, n).value;
    for (int i = 0; i < spec.head_dim; ++i) sums[i] += weights[n - first] * value[i];
  }
  for (int i = 0; i < spec.head_dim; ++i) out[i] = static_cast<float>(sums[i] / total);
}

const ReferenceAttentionPlan& PlanOf(const AttentionPlan* plan, const CacheView& cache) {
  LATENTD_CHECK(plan != nullptr && cache.block_bytes == plan->spec().cache.block_bytes());
  return static_cast<const ReferenceAttentionPlan&>(*plan);
}

// Writes tokens of one layout: the layer's blocks, or own pages.
class RowWriter {
 public:
  RowWriter(const ReferenceAttentionPlan& plan, const CacheLayer& layer)
      : plan_(plan), spec_(plan.spec()), layer_(layer), reader_(plan, layer) {}

  void Write(const float* k, const float* v, int token, uint8_t* block) const {
    WritePlane(layer_.k, k, token, block + layer_.k_offset(0, 0));
    WritePlane(layer_.v, v, token, block + layer_.v_offset(0, 0));
    for (int head = 0; head < layer_.key_norms; ++head) {
      *reader_.KeyNorm(block, token, head) = InverseNorm(reader_.PlainKey(block, token, head));
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
    constexpr double kMaxHalf = 65504.0;
    double squares = 0;
    for (const double x : key) squares += x * x;
    const double inverse = 1.0 / std::sqrt(squares / spec_.head_dim + spec_.k_norm_epsilon);
    return FloatToHalf(static_cast<float>(inverse > kMaxHalf ? kMaxHalf : inverse));
  }

  const ReferenceAttentionPlan& plan_;
  const AttentionSpec& spec_;
  const CacheLayer& layer_;
  const RowReader reader_;
};

// Values to fp16.
void WriteHalves(const float* values, int count, uint16_t* halves) {
  for (int i = 0; i < count; ++i) halves[i] = FloatToHalf(values[i]);
}

}  // namespace

ReferenceAttentionPlan::ReferenceAttentionPlan(const AttentionSpec& spec) : AttentionPlan(spec) {
  const int64_t rows = int64_t{spec.num_kv_heads} * spec.head_dim;
  k_up_ = Copy(spec.k_up, rows * spec.cache.k.dims());
  v_up_ = Copy(spec.v_up, rows * spec.cache.v.dims());
  k_bias_ = Copy(spec.k_bias, rows);
  v_bias_ = Copy(spec.v_bias, rows);
  k_norm_ = Copy(spec.k_norm, spec.head_dim);
  alibi_slopes_ = Copy(spec.alibi_slopes, spec.num_heads);
  spec_.k_up = spec_.v_up = spec_.k_bias = spec_.v_bias = spec_.k_norm = spec_.alibi_slopes =
      nullptr;
}

void ReferenceAppendCache(const AppendCacheParams& p) {
  const ReferenceAttentionPlan& plan = PlanOf(p.plan, p.cache);
  const CacheView& view = p.cache;
  const CacheLayer& layer = plan.spec().cache;
  const CacheLayer own_layer = layer.OwnPageLayer();
  const RowWriter coded(plan, layer), own(plan, own_layer);
  int64_t sink_row = 0;
  for (int64_t i = 0; i < std::ssize(view.kv_lens); ++i) {
    const int64_t begin = view.cu_q_lens[i], end = view.cu_q_lens[i + 1];
    if (begin == end) continue;
    const int64_t first_position = view.kv_lens[i] - (end - begin);
    if (layer.own_page) {
      // The page's earlier tokens, before the last page's rows take the seat over.
      const PageRange pages = PagesOfRows(view, i);
      const bool begun = first_position % kBlockTokens != 0;
      if (begun && pages.first != pages.last) {
        std::memcpy(OwnPage(layer, view, i, pages.first), OwnPage(layer, view, i, pages.last),
                    layer.own_page_bytes());
      }
    }
    for (int64_t t = begin; t < end; ++t) {
      const int64_t position = first_position + t - begin, slot = view.slots[t];
      LATENTD_CHECK(slot >= 0 && slot % kBlockTokens == position % kBlockTokens);
      const float* k = p.k + t * p.k_stride;
      const float* v = p.v + t * p.v_stride;
      const int token = static_cast<int>(slot % kBlockTokens);
      coded.Write(k, v, token, view.layer + slot / kBlockTokens * view.block_bytes);
      if (layer.own_page) {
        own.Write(k, v, token, OwnPage(layer, view, i, position / kBlockTokens));
      }
      if (position < layer.sinks) {
        const int64_t dims = layer.sink_dims;
        uint16_t* keys = Sinks(layer, view, i);
        uint16_t* values = keys + layer.sinks * dims;
        WriteHalves(p.sink_k + sink_row * dims, dims, keys + position * dims);
        WriteHalves(p.sink_v + sink_row * dims, dims, values + position * dims);
        ++sink_row;
      }
    }
  }
}

void ReferenceAttention(const AttentionParams& p) {
  const ReferenceAttentionPlan& plan = PlanOf(p.plan, p.cache);
  const AttentionSpec& spec = plan.spec();
  const int q_per_kv = spec.num_heads / spec.num_kv_heads;
  for (int64_t i = 0; i < std::ssize(p.cache.kv_lens); ++i) {
    const int64_t first_row = p.cache.cu_q_lens[i];
    const int64_t q_len = p.cache.cu_q_lens[i + 1] - first_row;
    const int64_t first_position = p.cache.kv_lens[i] - q_len;
    LATENTD_CHECK(first_position >= 0);
    for (int kv_head = 0; kv_head < spec.num_kv_heads; ++kv_head) {
      SequenceReader reader(plan, p.cache, i, kv_head);
      for (int64_t r = 0; r < q_len; ++r) {
        for (int head = kv_head * q_per_kv; head < (kv_head + 1) * q_per_kv; ++head) {
          const int64_t offset = ((first_row + r) * spec.num_heads + head) * spec.head_dim;
          const double slope = plan.alibi_slopes().empty() ? 0.0 : plan.alibi_slopes()[head];
          AttendRow(spec, slope, first_position + r, p.q + offset, reader, p.out + offset);
        }
      }
    }
  }
}

}  // namespace latentd
