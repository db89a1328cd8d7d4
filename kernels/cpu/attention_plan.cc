#include "kernels/cpu/attention_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/cpu/amx_product.h"

namespace latentd {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;
constexpr int kValueStep = 16;
constexpr int kMaxFactor = 127;  // of an int8 part

int RoundUp(int value, int step) { return (value + step - 1) / step * step; }

bool IsInteger(Codec codec) { return Info(codec).scale_bytes > 0; }

// One row of a segment's factors as int8 parts: x ~ scale * (part0 + part1 / 254).
void QuantizeRow(const float* x, KUpSegment& segment, int64_t row, int64_t rows, int64_t head) {
  float largest = 0.0f;
  for (int d = 0; d < segment.dims; ++d) largest = std::max(largest, std::fabs(x[d]));
  const float scale = largest / kMaxFactor;
  const float inverse = largest > 0.0f ? kMaxFactor / largest : 0.0f;
  // Row of the factors: groups of kGroupPairs x rows and their y rows.
  const int64_t pairs = rows / 2, pair = row % pairs;
  const int64_t place =
      pair / kGroupPairs * 2 * kGroupPairs + row / pairs * kGroupPairs + pair % kGroupPairs;
  double sum = 0.0;
  for (int d = 0; d < segment.dims; ++d) {
    float rest = x[d] * inverse;
    float weight = 1.0f;
    for (int part = 0; part < segment.parts; ++part) {
      const float rounded = std::clamp<float>(std::nearbyint(rest), -kMaxFactor, kMaxFactor);
      segment.factors[((head * segment.parts + part) * rows + place) * segment.row_bytes + d] =
          static_cast<int8_t>(rounded);
      sum += static_cast<double>(rounded) * weight;
      rest = (rest - rounded) * kPartRatio;
      weight /= kPartRatio;
    }
  }
  segment.scales[head * rows + row] = scale;
  segment.row_sums[head * rows + row] = static_cast<float>(sum * scale);
}

}  // namespace

CpuAttentionPlan::CpuAttentionPlan(const AttentionSpec& spec, bool use_amx)
    : AttentionPlan(spec), use_amx(use_amx) {
  spec_.k_up = spec_.v_up = spec_.k_bias = spec_.v_bias = nullptr;
  kv_per_k = spec.num_kv_heads / spec.cache.k.latent_heads;
  kv_per_v = spec.num_kv_heads / spec.cache.v.latent_heads;
  unit = std::lcm(kv_per_k, kv_per_v);
  q_per_kv = spec.num_heads / spec.num_kv_heads;
  k_dims = spec.cache.k.dims();
  v_dims = spec.cache.v.dims();
  query_scale = spec.softmax_scale * kLog2E;
  query_dims = k_dims;
  value_dims = v_dims;
  if (spec.path == AttentionPath::kFull) return;
  if (spec.path == AttentionPath::kReconstruct) {
    PrepareRope();
    PrepareReconstruct(spec);
  } else {
    PrepareAbsorbed(spec);
  }
  PrepareValues(spec);
}

void CpuAttentionPlan::PrepareRope() {
  const RopeTable& rope = *spec_.rope;
  const int rest = spec_.head_dim - 2 * rope.pairs;
  pairs = RoundUp(rope.pairs + (rest + 1) / 2, kGroupPairs);
  query_dims = 2 * pairs;
  dim_of_row.assign(2 * pairs, -1);
  for (int j = 0; j < rope.pairs; ++j) {
    dim_of_row[j] = j;
    dim_of_row[pairs + j] = rope.pairs + j;
  }
  for (int i = 0; i < rest; ++i) {
    dim_of_row[i % 2 * pairs + rope.pairs + i / 2] = 2 * rope.pairs + i;
  }
  cos.assign(pairs * kBlockTokens, 1.0f);
  sin.assign(pairs * kBlockTokens, 0.0f);
  for (int j = 0; j < rope.pairs; ++j) {
    for (int t = 0; t < std::min(kBlockTokens, rope.max_positions); ++t) {
      cos[j * kBlockTokens + t] = rope.cos[int64_t{t} * rope.pairs + j];
      sin[j * kBlockTokens + t] = rope.sin[int64_t{t} * rope.pairs + j];
    }
  }
}

void CpuAttentionPlan::PrepareReconstruct(const AttentionSpec& spec) {
  const int rows = query_dims;
  const int64_t all_rows = int64_t{spec.num_kv_heads} * rows;
  k_bias.assign(all_rows, 0.0f);
  int first_dim = 0;
  for (const Segment& stored : spec.cache.k.segments) {
    KUpSegment& segment = k_up.emplace_back();
    segment.integer = IsInteger(stored.codec);
    segment.symmetric = Info(stored.codec).scale_bytes == 2;
    segment.dims = stored.dims;
    segment.parts = Info(stored.codec).bits == 8 ? 2 : 1;
    segment.row_bytes = RoundUp(stored.dims, kAmxStep);
    const int index = static_cast<int>(k_up.size()) - 1;
    segment.cache_offset = spec.cache.k.segment_offset(index);
    segment.scale_offset = spec.cache.k.scale_offset(index);
    segment.source_offset = key_source_floats;
    // scale[64] and offset[64], then words of row_bytes dims or fp32 latents.
    key_source_floats +=
        2 * kBlockTokens + (segment.integer ? segment.row_bytes / 4 : stored.dims) * kBlockTokens;
    if (segment.integer) {
      segment.factors.assign(all_rows * segment.parts * segment.row_bytes, 0);
      segment.scales.assign(all_rows, 0.0f);
      segment.row_sums.assign(all_rows, 0.0f);
    } else {
      segment.fp32.assign(all_rows * segment.dims, 0.0f);
    }
    const float middle = -0.5f * static_cast<float>((1 << Info(stored.codec).bits % 32) - 1);
    for (int64_t head = 0; head < spec.num_kv_heads; ++head) {
      for (int row = 0; row < rows; ++row) {
        if (dim_of_row[row] < 0) continue;
        const int64_t dim = head * spec.head_dim + dim_of_row[row];
        const float* x = spec.k_up + dim * k_dims + first_dim;
        if (spec.k_bias != nullptr) k_bias[head * rows + row] = spec.k_bias[dim];
        if (!segment.integer) {
          std::copy_n(x, segment.dims, &segment.fp32[(head * rows + row) * segment.dims]);
          continue;
        }
        QuantizeRow(x, segment, row, rows, head);
        if (segment.symmetric) segment.row_sums[head * rows + row] *= middle;
      }
    }
    first_dim += stored.dims;
  }
}

// k_bias adds the same number to every score of a query, which softmax does not see.
void CpuAttentionPlan::PrepareAbsorbed(const AttentionSpec& spec) {
  const int64_t values = int64_t{spec.num_kv_heads} * spec.head_dim * k_dims;
  k_up_absorbed.resize(values);
  for (int64_t i = 0; i < values; ++i) k_up_absorbed[i] = spec.k_up[i] * query_scale;
}

void CpuAttentionPlan::PrepareValues(const AttentionSpec& spec) {
  value_dims = RoundUp(spec.head_dim, kValueStep);
  v_up.assign(int64_t{spec.num_kv_heads} * v_dims * value_dims, 0.0f);
  v_bias.assign(int64_t{spec.num_kv_heads} * value_dims, 0.0f);
  for (int64_t head = 0; head < spec.num_kv_heads; ++head) {
    for (int i = 0; i < spec.head_dim; ++i) {
      const int64_t dim = head * spec.head_dim + i;
      if (spec.v_bias != nullptr) v_bias[head * value_dims + i] = spec.v_bias[dim];
      for (int d = 0; d < v_dims; ++d) {
        v_up[(head * v_dims + d) * value_dims + i] = spec.v_up[dim * v_dims + d];
      }
    }
  }
}

}  // namespace latentd
