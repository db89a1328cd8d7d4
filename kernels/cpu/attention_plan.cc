#include "kernels/cpu/attention_plan.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/cpu/amx_product.h"

namespace latentd {
namespace {

constexpr float kLog2E = 1.44269504088896340736f;
constexpr int kValueStep = 16;

int RoundUp(int value, int step) { return (value + step - 1) / step * step; }

// Fewer queries that share a latent head of V leave its tiles of kAmxRows rows too empty.
constexpr int kLeastIntegerQueries = 6;

bool IsInteger(const Segment& segment) { return Info(segment.codec).scale_bytes > 0; }

bool IsSmall(const Segment& segment) {
  return Info(segment.codec).scale_bytes == 2 && Info(segment.codec).bits <= 4;
}

// One row of a segment's factors, which are zeros, as int8 parts: x ~ scale * (part0 + part1 /
// 254).
void QuantizeRow(const float* x, KUpSegment& segment, int64_t row, int64_t rows, int64_t head) {
  float largest = 0.0f;
  for (int d = 0; d < segment.dims; ++d) largest = std::max(largest, std::fabs(x[d]));
  if (largest < kLeastScale) return;
  const float scale = largest / kMaxFactor;
  const float inverse = kMaxFactor / largest;
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
  spec_.k_up = spec_.v_up = spec_.k_bias = spec_.v_bias = spec_.k_norm = spec_.alibi_slopes =
      nullptr;
  kv_per_k = spec.num_kv_heads / spec.cache.k.latent_heads;
  kv_per_v = spec.num_kv_heads / spec.cache.v.latent_heads;
  unit = std::lcm(kv_per_k, kv_per_v);
  q_per_kv = spec.num_heads / spec.num_kv_heads;
  k_dims = spec.cache.k.dims();
  v_dims = spec.cache.v.dims();
  query_scale = spec.softmax_scale * kLog2E;
  query_dims = k_dims;
  value_dims = v_dims;
  PrepareFormats();
  if (spec.alibi_slopes != nullptr) {
    for (int i = 0; i < spec.num_heads; ++i) slopes.push_back(spec.alibi_slopes[i] * kLog2E);
  }
  // Tiles cost every context switch 8 KiB: none for products that use none.
  if (spec.path != AttentionPath::kReconstruct) this->use_amx = coded.integer_values;
  if (spec.path == AttentionPath::kFull) return;
  if (spec.path == AttentionPath::kReconstruct) {
    PrepareRope();
    PrepareReconstruct(spec);
  } else {
    PrepareAbsorbed(spec);
  }
  PrepareValues(spec);
}

CpuAttentionPlan::Parts CpuAttentionPlan::PartsOf(int position) const {
  const int first = FirstInPages(position);
  Parts parts;
  parts.sinks = FirstVisible(position) < spec_.cache.sinks;
  parts.first_split = first / kSplitTokens;
  // A row among the sinks sees no page.
  parts.last_split = first <= position ? position / kSplitTokens + 1 : parts.first_split;
  return parts;
}

void CpuAttentionPlan::PrepareFormats() {
  coded.layer = spec_.cache;
  own.layer = spec_.cache.OwnPageLayer();
  for (PageFormat* format : {&coded, &own}) {
    format->k_head_bytes = format->layer.k.head_bytes();
    format->v_head_bytes = format->layer.v.head_bytes();
    format->v_plane_offset = format->layer.k.plane_bytes();
    format->key_norm_offset = format->layer.key_norm_offset(0);
    format->integer_values = use_amx && kv_per_v * q_per_kv >= kLeastIntegerQueries &&
                             std::ranges::all_of(format->layer.v.segments, IsInteger);
  }
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
  const int64_t dims = int64_t{spec.num_kv_heads} * spec.head_dim;
  const auto norm = [&](int64_t dim) {
    return spec.k_norm == nullptr ? 1.0f : spec.k_norm[dim % spec.head_dim];
  };
  k_bias.assign(int64_t{spec.num_kv_heads} * query_dims, 0.0f);
  for (int64_t i = 0; spec.k_bias != nullptr && i < std::ssize(k_bias); ++i) {
    const int dim_in_head = dim_of_row[i % query_dims];
    if (dim_in_head < 0) continue;
    const int64_t dim = i / query_dims * spec.head_dim + dim_in_head;
    k_bias[i] = spec.k_bias[dim] * norm(dim);
  }
  std::vector<float> factors(spec.k_up, spec.k_up + dims * k_dims);
  if (spec.k_norm != nullptr) {
    norm_k_up.assign(factors.begin(), factors.end());
    norm_k_bias.assign(dims, 0.0f);
    if (spec.k_bias != nullptr) norm_k_bias.assign(spec.k_bias, spec.k_bias + dims);
    for (int64_t i = 0; i < std::ssize(factors); ++i) factors[i] *= norm(i / k_dims);
  }
  const auto& segments = spec.cache.k.segments;
  coded.joint_keys = std::ranges::any_of(segments, IsSmall) &&
                     std::ranges::all_of(segments, [](const Segment& segment) {
                       return IsSmall(segment) || segment.codec == Codec::kInt8;
                     });
  if (coded.joint_keys) AddJoint(spec, factors.data(), coded);
  AddSegments(spec, factors.data(), coded);
  if (coded.joint_keys) OverPairScales(coded);
  if (spec.cache.own_page) AddSegments(spec, factors.data(), own);
}

void CpuAttentionPlan::AddJoint(const AttentionSpec& spec, const float* k_up,
                                PageFormat& format) const {
  const int rows = query_dims;
  JointKUp& joint = format.joint;
  std::vector<int> dims;  // of k_up, that the segments hold
  int first_dim = 0;
  for (int s = 0; s < static_cast<int>(std::ssize(format.layer.k.segments)); ++s) {
    const Segment& segment = format.layer.k.segments[s];
    if (IsSmall(segment)) {
      joint.segments.push_back(s);
      for (int d = 0; d < segment.dims; ++d) dims.push_back(first_dim + d);
    }
    first_dim += segment.dims;
  }
  joint.dims = static_cast<int>(dims.size());
  joint.row_bytes = RoundUp(joint.dims, kAmxStep);
  joint.has_bias = spec.k_bias != nullptr;
  joint.factors.assign(int64_t{spec.num_kv_heads} * rows * joint.row_bytes, 0);
  joint.row_sums.assign(int64_t{spec.num_kv_heads} * rows, 0);
  joint.scales.assign(int64_t{spec.num_kv_heads} * pairs, 1.0f);
  joint.bias = k_bias;
  format.key_source_floats = 2 * kBlockTokens + joint.row_bytes / 4 * kBlockTokens;
  for (int64_t head = 0; head < spec.num_kv_heads; ++head) {
    for (int pair = 0; pair < pairs; ++pair) {
      const float* x[2] = {};
      float largest = 0.0f;
      for (int i = 0; i < 2; ++i) {
        const int dim = dim_of_row[i * pairs + pair];
        if (dim < 0) continue;
        x[i] = k_up + (head * spec.head_dim + dim) * k_dims;
        for (const int d : dims) largest = std::max(largest, std::fabs(x[i][d]));
      }
      if (largest < kLeastScale) continue;  // nothing but the bias
      const float scale = largest / kMaxFactor;
      joint.scales[head * pairs + pair] = scale;
      for (int i = 0; i < 2; ++i) {
        joint.bias[head * rows + i * pairs + pair] /= scale;
        if (x[i] == nullptr) continue;
        const int64_t row = head * rows + pair / kGroupPairs * 2 * kGroupPairs + i * kGroupPairs +
                            pair % kGroupPairs;
        int8_t* factors = &joint.factors[row * joint.row_bytes];
        for (int d = 0; d < joint.dims; ++d) {
          factors[d] = static_cast<int8_t>(std::nearbyint(x[i][dims[d]] / largest * kMaxFactor));
          joint.row_sums[row] += factors[d];
        }
      }
    }
  }
}

// The segments beside the joint ones rebuild what those do: a key over its pairs' scales.
void CpuAttentionPlan::OverPairScales(PageFormat& format) const {
  for (KUpSegment& segment : format.k_up) {
    for (int64_t i = 0; i < std::ssize(segment.scales); ++i) {
      const float scale = format.joint.scales[i / query_dims * pairs + i % pairs];
      segment.scales[i] /= scale;
      segment.row_sums[i] /= scale;
    }
  }
}

void CpuAttentionPlan::AddSegments(const AttentionSpec& spec, const float* k_up,
                                   PageFormat& format) const {
  const int rows = query_dims;
  const int64_t all_rows = int64_t{spec.num_kv_heads} * rows;
  int first_dim = 0;
  for (int index = 0; index < static_cast<int>(std::ssize(format.layer.k.segments)); ++index) {
    const Segment& stored = format.layer.k.segments[index];
    first_dim += stored.dims;
    if (format.joint_keys && IsSmall(stored)) continue;
    KUpSegment& segment = format.k_up.emplace_back();
    segment.index = index;
    segment.integer = IsInteger(stored);
    segment.symmetric = Info(stored.codec).scale_bytes == 2;
    segment.dims = stored.dims;
    segment.parts = Info(stored.codec).bits == 8 ? 2 : 1;
    segment.row_bytes = RoundUp(stored.dims, kAmxStep);
    segment.cache_offset = format.layer.k.segment_offset(index);
    segment.scale_offset = format.layer.k.scale_offset(index);
    segment.source_offset = format.key_source_floats;
    // scale[64] and offset[64], then words of row_bytes dims or fp32 latents.
    format.key_source_floats +=
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
        const float* x =
            k_up + (head * spec.head_dim + dim_of_row[row]) * k_dims + first_dim - stored.dims;
        if (!segment.integer) {
          std::copy_n(x, segment.dims, &segment.fp32[(head * rows + row) * segment.dims]);
          continue;
        }
        QuantizeRow(x, segment, row, rows, head);
        if (segment.symmetric) segment.row_sums[head * rows + row] *= middle;
      }
    }
  }
}

void CpuAttentionPlan::PrepareAbsorbed(const AttentionSpec& spec) {
  const int64_t values = int64_t{spec.num_kv_heads} * spec.head_dim * k_dims;
  k_up_absorbed.resize(values);
  for (int64_t i = 0; i < values; ++i) k_up_absorbed[i] = spec.k_up[i] * query_scale;
  coded.integer_scores = coded.integer_values && kv_per_k == kv_per_v &&
                         std::ranges::all_of(spec.cache.k.segments, IsInteger);
  if (!coded.integer_scores) return;
  AbsorbedKeys& keys = coded.absorbed;
  for (const Segment& segment : spec.cache.k.segments) {
    AbsorbedKeys::Part part = {.dims = segment.dims,
                               .row_bytes = RoundUp(segment.dims, kAmxStep),
                               .has_offset = HasSignedOffset(segment.codec),
                               .factor_offset = keys.tile_floats};
    part.scale_offset = part.factor_offset + 2 * kAmxRows * part.row_bytes / 4;
    part.source_floats = 2 * kBlockTokens + part.row_bytes / 4 * kBlockTokens;
    keys.tile_floats = part.scale_offset + 2 * kAmxRows;
    coded.key_source_floats += part.source_floats;
    keys.parts.push_back(part);
  }
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
