#include "kernels/reference/attention.h"

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace latentd {
namespace {

std::vector<float> Copy(const float* from, int64_t count) {
  return from == nullptr ? std::vector<float>() : std::vector<float>(from, from + count);
}

// Keys or values of one KV head for the positions 0 .. count - 1 of a sequence: [count, head_dim].
using HeadRows = std::vector<std::vector<double>>;

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

class SequenceReader {
 public:
  SequenceReader(const ReferenceAttentionPlan& plan, const CacheView& cache, int64_t sequence)
      : plan_(plan),
        spec_(plan.spec()),
        layer_(cache.layer),
        blocks_(cache.block_table.subspan(sequence * cache.max_blocks, cache.max_blocks)),
        count_(cache.kv_lens[sequence]) {
    LATENTD_CHECK((count_ + kBlockTokens - 1) / kBlockTokens <= cache.max_blocks);
  }

  HeadRows Keys(int kv_head) const {
    const RopeTable* rope = spec_.path == AttentionPath::kReconstruct ? spec_.rope : nullptr;
    return Rows(kv_head, spec_.cache.k, &CacheLayer::k_offset, plan_.k_up(), plan_.k_bias(), rope);
  }
  HeadRows Values(int kv_head) const {
    return Rows(kv_head, spec_.cache.v, &CacheLayer::v_offset, plan_.v_up(), plan_.v_bias(),
                nullptr);
  }

 private:
  HeadRows Rows(int kv_head, const CachePlane& plane,
                int64_t (CacheLayer::*offset)(int64_t, int) const, const std::vector<float>& up,
                const std::vector<float>& bias, const RopeTable* rope) const {
    const int latent_head = kv_head / (spec_.num_kv_heads / plane.latent_heads);
    const int64_t first_row =
        int64_t{kv_head} * spec_.head_dim;  // factors of all heads are contiguous
    const float* head_up = up.empty() ? nullptr : up.data() + first_row * plane.dims();
    const float* head_bias = bias.empty() ? nullptr : bias.data() + first_row;
    std::vector<float> stored(plane.dims());
    HeadRows rows;
    for (int64_t position = 0; position < count_; ++position) {
      const int64_t block = blocks_[position / kBlockTokens];
      LATENTD_CHECK(block >= 0);
      ReadCacheRow(plane, layer_ + (spec_.cache.*offset)(block, latent_head),
                   static_cast<int>(position % kBlockTokens), absl::MakeSpan(stored));
      rows.push_back(Rebuild(stored, head_up, head_bias, spec_.head_dim));
      if (rope != nullptr) Rotate(*rope, position, rows.back());
    }
    return rows;
  }

  const ReferenceAttentionPlan& plan_;
  const AttentionSpec& spec_;
  const uint8_t* const layer_;
  const absl::Span<const int32_t> blocks_;
  const int64_t count_;
};

// out = softmax(softmax_scale * q . keys) values over the first `visible` positions.
void AttendRow(const float* q, const HeadRows& keys, const HeadRows& values, int64_t visible,
               double softmax_scale, int head_dim, float* out) {
  std::vector<double> weights(visible);
  double max = -INFINITY;
  for (int64_t n = 0; n < visible; ++n) {
    double score = 0;
    for (int i = 0; i < head_dim; ++i) score += q[i] * keys[n][i];
    weights[n] = score * softmax_scale;
    max = std::max(max, weights[n]);
  }
  double total = 0;
  for (double& weight : weights) total += weight = std::exp(weight - max);
  for (int i = 0; i < head_dim; ++i) {
    double sum = 0;
    for (int64_t n = 0; n < visible; ++n) sum += weights[n] * values[n][i];
    out[i] = static_cast<float>(sum / total);
  }
}

const ReferenceAttentionPlan& PlanOf(const AttentionPlan* plan, const CacheView& cache) {
  LATENTD_CHECK(plan != nullptr && cache.block_bytes == plan->spec().cache.block_bytes());
  return static_cast<const ReferenceAttentionPlan&>(*plan);
}

}  // namespace

ReferenceAttentionPlan::ReferenceAttentionPlan(const AttentionSpec& spec) : AttentionPlan(spec) {
  const int64_t rows = int64_t{spec.num_kv_heads} * spec.head_dim;
  k_up_ = Copy(spec.k_up, rows * spec.cache.k.dims());
  v_up_ = Copy(spec.v_up, rows * spec.cache.v.dims());
  k_bias_ = Copy(spec.k_bias, rows);
  v_bias_ = Copy(spec.v_bias, rows);
  spec_.k_up = spec_.v_up = spec_.k_bias = spec_.v_bias = nullptr;
}

void ReferenceAppendCache(const AppendCacheParams& p) {
  const AttentionSpec& spec = PlanOf(p.plan, p.cache).spec();
  const auto append = [&](const CachePlane& plane, const float* row, int64_t slot,
                          int64_t (CacheLayer::*offset)(int64_t, int) const) {
    const int width = spec.path == AttentionPath::kFull ? spec.head_dim : plane.dims();
    std::vector<float> values(plane.dims(), 0.0f);
    for (int h = 0; h < plane.latent_heads; ++h) {
      std::copy_n(row + int64_t{h} * width, width, values.begin());
      WriteCacheRow(plane, p.cache.layer + (spec.cache.*offset)(slot / kBlockTokens, h),
                    static_cast<int>(slot % kBlockTokens), values);
    }
  };
  for (size_t t = 0; t < p.cache.slots.size(); ++t) {
    const int64_t slot = p.cache.slots[t];
    LATENTD_CHECK(slot >= 0);
    append(spec.cache.k, p.k + t * p.k_stride, slot, &CacheLayer::k_offset);
    append(spec.cache.v, p.v + t * p.v_stride, slot, &CacheLayer::v_offset);
  }
}

void ReferenceAttention(const AttentionParams& p) {
  const ReferenceAttentionPlan& plan = PlanOf(p.plan, p.cache);
  const AttentionSpec& spec = plan.spec();
  const int q_per_kv = spec.num_heads / spec.num_kv_heads;
  for (size_t i = 0; i < p.cache.kv_lens.size(); ++i) {
    const int64_t first_row = p.cache.cu_q_lens[i];
    const int64_t q_len = p.cache.cu_q_lens[i + 1] - first_row;
    if (q_len == 0) continue;
    const int64_t first_position = p.cache.kv_lens[i] - q_len;
    LATENTD_CHECK(first_position >= 0);
    const SequenceReader reader(plan, p.cache, static_cast<int64_t>(i));
    for (int kv_head = 0; kv_head < spec.num_kv_heads; ++kv_head) {
      const HeadRows keys = reader.Keys(kv_head);
      const HeadRows values = reader.Values(kv_head);
      for (int64_t r = 0; r < q_len; ++r) {
        for (int head = kv_head * q_per_kv; head < (kv_head + 1) * q_per_kv; ++head) {
          const int64_t offset = ((first_row + r) * spec.num_heads + head) * spec.head_dim;
          AttendRow(p.q + offset, keys, values, first_position + r + 1, spec.softmax_scale,
                    spec.head_dim, p.out + offset);
        }
      }
    }
  }
}

}  // namespace latentd
