#pragma once

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/ops.h"
#include "kernels/params.h"
#include "tests/testing/paged_cache.h"
#include "tests/testing/random_values.h"

namespace latentd {

// What one layer's attention looks like; the factors follow from it and a seed.
struct AttentionShape {
  AttentionPath path = AttentionPath::kFull;
  int num_heads = 4;
  int num_kv_heads = 2;
  int head_dim = 32;
  int k_latent_heads = 2;  // kFull has num_kv_heads of both
  int v_latent_heads = 2;
  std::vector<Segment> k;
  std::vector<Segment> v;
  int rope_pairs = 0;   // 0: head_dim / 2
  bool biases = false;  // no k_bias on kAbsorbed, which takes none
  int sinks = 0;
  bool own_page = false;
  bool k_norm = false;
  int window = 0;
  bool alibi = false;
};

// A spec with random factors, and the memory that it points to.
class AttentionCase {
 public:
  explicit AttentionCase(const AttentionShape& shape, int max_positions = 4096) {
    const bool full = shape.path == AttentionPath::kFull;
    spec_ = {.path = shape.path,
             .num_heads = shape.num_heads,
             .num_kv_heads = shape.num_kv_heads,
             .head_dim = shape.head_dim,
             .softmax_scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim)),
             .window = shape.window};
    spec_.cache.k = {.latent_heads = full ? shape.num_kv_heads : shape.k_latent_heads,
                     .segments = shape.k,
                     .order = TileOrder::kDimMajor};
    spec_.cache.v = {.latent_heads = full ? shape.num_kv_heads : shape.v_latent_heads,
                     .segments = shape.v,
                     .order = TileOrder::kTokenMajor};
    if (shape.alibi) {
      for (int h = 0; h < shape.num_heads; ++h) alibi_slopes_.push_back(std::exp2(-1.0f - h));
      spec_.alibi_slopes = alibi_slopes_.data();
    }
    if (full) return;
    const int width = shape.num_kv_heads * shape.head_dim;
    spec_.cache.sinks = shape.sinks;
    spec_.cache.sink_dims = shape.sinks > 0 ? width : 0;
    spec_.cache.own_page = shape.own_page;
    if (shape.k_norm) {
      k_norm_ = GaussianValues(shape.head_dim, 15);
      spec_.k_norm = k_norm_.data();
      spec_.k_norm_epsilon = 1e-6f;
      spec_.cache.key_norms = shape.num_kv_heads;
    }
    const int k_dims = spec_.cache.k.dims(), v_dims = spec_.cache.v.dims();
    k_up_ = GaussianValues(int64_t{width} * k_dims, 11, 1.0f / std::sqrt(1.0f * k_dims));
    v_up_ = GaussianValues(int64_t{width} * v_dims, 12, 1.0f / std::sqrt(1.0f * v_dims));
    spec_.k_up = k_up_.data();
    spec_.v_up = v_up_.data();
    if (shape.biases) {
      k_bias_ = GaussianValues(width, 13, 3.0f);
      v_bias_ = GaussianValues(width, 14, 0.3f);
      if (shape.path != AttentionPath::kAbsorbed) spec_.k_bias = k_bias_.data();
      spec_.v_bias = v_bias_.data();
    }
    if (shape.path != AttentionPath::kReconstruct) return;
    rope_.pairs = shape.rope_pairs > 0 ? shape.rope_pairs : shape.head_dim / 2;
    rope_.max_positions = max_positions;
    for (int position = 0; position < max_positions; ++position) {
      for (int j = 0; j < rope_.pairs; ++j) {
        const double angle = position * std::pow(1e4, -static_cast<double>(j) / rope_.pairs);
        rope_.cos.push_back(static_cast<float>(std::cos(angle)));
        rope_.sin.push_back(static_cast<float>(std::sin(angle)));
      }
    }
    spec_.rope = &rope_;
  }
  AttentionCase(const AttentionCase&) = delete;
  AttentionCase& operator=(const AttentionCase&) = delete;

  const AttentionSpec& spec() const { return spec_; }
  int q_width() const { return spec_.num_heads * spec_.head_dim; }
  // Values of a token's row as AppendCache takes it.
  int k_width() const { return Width(spec_.cache.k); }
  int v_width() const { return Width(spec_.cache.v); }
  // Values of an exact key or value.
  int sink_width() const { return spec_.num_kv_heads * spec_.head_dim; }

 private:
  int Width(const CachePlane& plane) const {
    const bool full = spec_.path == AttentionPath::kFull;
    return plane.latent_heads * (full ? spec_.head_dim : plane.dims());
  }

  AttentionSpec spec_;
  RopeTable rope_;
  std::vector<float> k_up_, v_up_, k_bias_, v_bias_, k_norm_, alibi_slopes_;
};

// Random rows of all tokens of the sequences: q, what the cache stores, and exact keys and values,
// which have nothing to do with the latents.
struct AttentionInputs {
  AttentionInputs(const AttentionCase& c, int64_t tokens)
      : q(GaussianValues(tokens * c.q_width(), 21)),
        k(GaussianValues(tokens * c.k_width(), 22)),
        v(GaussianValues(tokens * c.v_width(), 23)),
        sink_k(GaussianValues(tokens * c.sink_width(), 24)),
        sink_v(GaussianValues(tokens * c.sink_width(), 25)) {}
  std::vector<float> q, k, v, sink_k, sink_v;
};

// The rows that one step appends.
struct AppendRows {
  AppendRows(const AttentionCase& c, const AttentionInputs& all, const PagedStep& step)
      : k_stride(c.k_width()),
        v_stride(c.v_width()),
        k(RowsOf(step, all.k, k_stride)),
        v(RowsOf(step, all.v, v_stride)),
        sink_k(SinkRowsOf(step, c.spec().cache.sinks, all.sink_k, c.sink_width())),
        sink_v(SinkRowsOf(step, c.spec().cache.sinks, all.sink_v, c.sink_width())) {}

  AppendCacheParams Params(const AttentionPlan& plan, const CacheView& cache) const {
    return {.plan = &plan,
            .cache = cache,
            .k = k.data(),
            .k_stride = k_stride,
            .v = v.data(),
            .v_stride = v_stride,
            .sink_k = sink_k.data(),
            .sink_v = sink_v.data()};
  }

  const int64_t k_stride, v_stride;
  const std::vector<float> k, v, sink_k, sink_v;
};

inline constexpr Codec kAllCodecs[] = {Codec::kF32,     Codec::kF16,     Codec::kInt8,
                                       Codec::kInt4,    Codec::kInt3,    Codec::kInt2,
                                       Codec::kMinMax4, Codec::kMinMax3, Codec::kMinMax2};

}  // namespace latentd
