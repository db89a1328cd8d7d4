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
  int rope_pairs = 0;  // 0: head_dim / 2
  bool biases = false;
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
             .softmax_scale = 1.0f / std::sqrt(static_cast<float>(shape.head_dim))};
    spec_.cache.k = {.latent_heads = full ? shape.num_kv_heads : shape.k_latent_heads,
                     .segments = shape.k,
                     .order = TileOrder::kDimMajor};
    spec_.cache.v = {.latent_heads = full ? shape.num_kv_heads : shape.v_latent_heads,
                     .segments = shape.v,
                     .order = TileOrder::kTokenMajor};
    if (full) return;
    const int width = shape.num_kv_heads * shape.head_dim;
    const int k_dims = spec_.cache.k.dims(), v_dims = spec_.cache.v.dims();
    k_up_ = GaussianValues(int64_t{width} * k_dims, 11, 1.0f / std::sqrt(1.0f * k_dims));
    v_up_ = GaussianValues(int64_t{width} * v_dims, 12, 1.0f / std::sqrt(1.0f * v_dims));
    spec_.k_up = k_up_.data();
    spec_.v_up = v_up_.data();
    if (shape.biases) {
      k_bias_ = GaussianValues(width, 13, 3.0f);
      v_bias_ = GaussianValues(width, 14, 0.3f);
      spec_.k_bias = k_bias_.data();
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

 private:
  int Width(const CachePlane& plane) const {
    const bool full = spec_.path == AttentionPath::kFull;
    return plane.latent_heads * (full ? spec_.head_dim : plane.dims());
  }

  AttentionSpec spec_;
  RopeTable rope_;
  std::vector<float> k_up_, v_up_, k_bias_, v_bias_;
};

// Random rows of all tokens of the sequences: q, and what the cache stores.
struct AttentionInputs {
  AttentionInputs(const AttentionCase& c, int64_t tokens)
      : q(GaussianValues(tokens * c.q_width(), 21)),
        k(GaussianValues(tokens * c.k_width(), 22)),
        v(GaussianValues(tokens * c.v_width(), 23)) {}
  std::vector<float> q, k, v;
};

inline constexpr Codec kAllCodecs[] = {Codec::kF32,     Codec::kF16,     Codec::kInt8,
                                       Codec::kInt4,    Codec::kInt3,    Codec::kInt2,
                                       Codec::kMinMax4, Codec::kMinMax3, Codec::kMinMax2};

}  // namespace latentd
