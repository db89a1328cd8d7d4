#include "kernels/reference/attention.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "kernels/cache_view.h"
#include "kernels/dtype.h"
#include "kernels/reference/cached_row.h"

namespace latentd {
namespace {

std::vector<float> Copy(const float* from, int64_t count) {
  return from == nullptr ? std::vector<float>() : std::vector<float>(from, from + count);
}

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
  KeyValue Read(const CachedRowReader& reader, const uint8_t* block, int64_t position) const {
    return {.key = reader.Key(block, position, kv_head_),
            .value = reader.Value(block, position, kv_head_)};
  }

  const AttentionSpec& spec_;
  const CacheView& cache_;
  const int64_t sequence_;
  const int kv_head_;
  const CacheLayer own_layer_;
  const CachedRowReader coded_reader_, own_reader_;
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

void ReferenceAttention(const AttentionParams& p) {
  LATENTD_CHECK(p.plan != nullptr);
  CheckView(p.plan->spec().cache, p.cache);
  const auto& plan = static_cast<const ReferenceAttentionPlan&>(*p.plan);
  const AttentionSpec& spec = plan.spec();
  const int q_per_kv = spec.num_heads / spec.num_kv_heads;
  for (int64_t i = 0; i < std::ssize(p.cache.kv_lens); ++i) {
    const int64_t first_row = p.cache.cu_q_lens[i];
    const int64_t q_len = p.cache.cu_q_lens[i + 1] - first_row;
    const int64_t first_position = p.cache.kv_lens[i] - q_len;
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
