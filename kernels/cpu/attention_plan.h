#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

#include "kernels/cpu/amx_product.h"
#include "kernels/ops.h"
#include "kernels/params.h"

namespace latentd {

// Dims of one latent head, all segments: rows of that size are buffered on the stack.
inline constexpr int kMaxRowDims = 4096;

// A factor x is scale * (part0 + part1 / kPartRatio): a step of part 0 is 254 of part 1, whose
// +-127 so cover the rounding.
inline constexpr int kPartRatio = 254;

// The largest int8 part.
inline constexpr int kMaxFactor = 127;

// Factors and token scales below this are taken for 0: no key shows them, and their inverses,
// multiplied with each other and a key, stay finite.
inline constexpr float kLeastScale = 1e-12f;

// Pairs that are rebuilt from integers together: their x and y rows are one tile of AMX.
inline constexpr int kGroupPairs = 8;

// Whether a code's value is more than a multiple of its signed code (attention_codes-inl.h): the
// zero of min-max codes, the half that 8-bit codes are off the middle.
inline bool HasSignedOffset(Codec codec) {
  return Info(codec).bits == 8 || Info(codec).scale_bytes == 4;
}

// Memory that starts at a cache line.
template <typename T>
struct CacheLineAllocator {
  using value_type = T;
  CacheLineAllocator() = default;
  template <typename U>
  CacheLineAllocator(const CacheLineAllocator<U>&) {}
  T* allocate(size_t n) {
    return static_cast<T*>(::operator new(n * sizeof(T), std::align_val_t{64}));
  }
  void deallocate(T* p, size_t) { ::operator delete(p, std::align_val_t{64}); }
  bool operator==(const CacheLineAllocator&) const { return true; }
};
template <typename T>
using AlignedVector = std::vector<T, CacheLineAllocator<T>>;

// One segment of k_up in the order of the kernels, all KV heads. Segments whose codes are small
// integers are multiplied as integers: k_up is then int8 with one scale per output row, which moves
// a key by about 0.6 % of its norm. 8-bit codes, which are more exact than that, get a factor of
// two int8 parts, 254 apart. Segments of 16- and 32-bit values are multiplied in fp32.
struct KUpSegment {
  int index = 0;  // of the plane's segments
  bool integer = false;
  bool symmetric = false;  // a code's offset is -(2^bits - 1) / 2 scales, not a stored number
  int dims = 0;
  int parts = 0;      // int8 parts of a factor: 1 or 2
  int row_bytes = 0;  // of one row of one part: dims rounded up to kAmxStep
  // Bytes from the latent head's start in a block to the codes, and to their scales.
  int64_t cache_offset = 0;
  int64_t scale_offset = 0;
  // Floats from the start of an item's key sources to this segment's (DecodeKeySources).
  int64_t source_offset = 0;
  // rows = 2 * plan.pairs, groups = plan.pairs / kGroupPairs.
  AlignedVector<int8_t> factors;  // [num_kv_heads][parts][groups][x, y][kGroupPairs][row_bytes]
  AlignedVector<float> scales;    // [num_kv_heads][rows]
  // [num_kv_heads][rows] scale x sum of the row, times -(2^bits - 1) / 2 if symmetric.
  AlignedVector<float> row_sums;
  AlignedVector<float> fp32;  // [num_kv_heads][rows][dims], when not integer
};

// k_up for codes of few bits (symmetric, at most 4): one product for all their segments, whose
// codes are brought to one scale per token (attention_joint_keys-inl.h).
struct JointKUp {
  std::vector<int> segments;  // of the plane, ascending
  int dims = 0;               // of them all
  int row_bytes = 0;          // dims rounded up to kAmxStep
  bool has_bias = false;
  AlignedVector<int8_t> factors;    // [num_kv_heads][groups][x, y][kGroupPairs][row_bytes]
  AlignedVector<int32_t> row_sums;  // [num_kv_heads][groups][x, y][kGroupPairs] of the factors
  AlignedVector<float> scales;      // [num_kv_heads][pairs], of both rows of a pair
  AlignedVector<float> bias;        // [num_kv_heads][2 * pairs] k_bias / scales
};

// What multiplies absorbed queries with codes as integers (attention_absorbed-inl.h), 16 queries of
// a K latent head at a time: where the parts of such a tile of queries lie, one per segment.
struct AbsorbedKeys {
  struct Part {
    int dims = 0;
    int row_bytes = 0;          // dims rounded up to kAmxStep
    bool has_offset = false;    // of the segment's signed codes
    int64_t factor_offset = 0;  // floats from the tile's start to int8 [2][kAmxRows][row_bytes]
    int64_t scale_offset = 0;   // to [scale, sum of the query][kAmxRows]
    int64_t source_floats = 0;  // of the segment's decoded codes
  };
  std::vector<Part> parts;
  int64_t tile_floats = 0;
};

// How a page is stored and read: a block of codes, or an own page of 16-bit latents.
struct PageFormat {
  CacheLayer layer;
  int64_t k_head_bytes = 0;
  int64_t v_head_bytes = 0;
  int64_t v_plane_offset = 0;    // of the V plane, from the page's start
  int64_t key_norm_offset = 0;   // of KV head 0's key norms; [64] fp16 per KV head
  bool integer_values = false;   // V's codes are multiplied as integers
  std::vector<KUpSegment> k_up;  // kReconstruct
  bool joint_keys = false;       // rebuilt by `joint`, else by k_up
  JointKUp joint;
  bool integer_scores = false;  // kAbsorbed: codes meet the queries as integers, by `absorbed`
  AbsorbedKeys absorbed;
  int64_t key_source_floats = 0;  // decoded latents of one latent head
};

// One layer's attention on the CPU: what does not change from step to step. Immutable after
// construction.
//
// Rows of a rebuilt key, and so of the queries it meets, are in "pair order": x of all pairs, then
// y, each padded to a multiple of kGroupPairs with zeros. Dims that RoPE leaves alone follow as
// pairs with the angle 0.
class CpuAttentionPlan final : public AttentionPlan {
 public:
  // use_amx: multiply integers on AMX; RequestAmx() has said yes.
  CpuAttentionPlan(const AttentionSpec& spec, bool use_amx);

  // KV heads that one work item takes: the fewest that hold whole latent heads of K and of V.
  int unit = 1;
  int kv_per_k = 1;  // KV heads that share a latent head of K, of V
  int kv_per_v = 1;
  int q_per_kv = 1;
  int k_dims = 0;  // of one latent head of the K plane, all segments
  int v_dims = 0;
  int query_dims = 0;  // of a query as it meets the key tile: k_dims, or 2 * pairs (kReconstruct)
  int value_dims = 0;  // of a split's output: v_dims for kFull, else head_dim rounded up to 16

  // The parts of a row's softmax, in the order in which they are folded: the exact sinks, then the
  // splits [first_split, last_split) of kSplitTokens positions.
  struct Parts {
    bool sinks = false;
    int first_split = 0;
    int last_split = 0;
  };
  Parts PartsOf(int position) const;
  // The first position that a row sees, and the first that it sees from pages.
  int FirstVisible(int position) const {
    return spec_.window > 0 ? std::max(0, position - spec_.window + 1) : 0;
  }
  int FirstInPages(int position) const {
    return std::max(FirstVisible(position), spec_.cache.sinks);
  }

  // kReconstruct.
  int pairs = 0;                // rotated pairs and those of angle 0, rounded up to kGroupPairs
  std::vector<int> dim_of_row;  // [2 * pairs] the head's dim that a row holds, -1 for padding
  AlignedVector<float> cos;     // [pairs][64] of the offsets in a block
  AlignedVector<float> sin;
  AlignedVector<float> k_bias;  // [num_kv_heads][2 * pairs]
  bool use_amx = false;
  // Where keys are normalised, k_norm is a factor of k_up's rows and of k_bias in the formats and
  // above. AppendCache takes the norms of keys without it:
  AlignedVector<float> norm_k_up;  // [num_kv_heads * head_dim][k_dims], as spec.k_up; else empty
  std::vector<float> norm_k_bias;  // [num_kv_heads * head_dim], zeros without spec.k_bias

  PageFormat coded;  // blocks
  PageFormat own;    // own pages, where the layer has them

  std::vector<float> slopes;           // [num_heads] ALiBi x log2(e); empty without
  float query_scale = 1.0f;            // softmax_scale x log2(e): scores are exponents of 2
  AlignedVector<float> k_up_absorbed;  // kAbsorbed: [num_kv_heads][head_dim][k_dims] x query_scale
  AlignedVector<float> v_up;           // latents: [num_kv_heads][v_dims][value_dims]
  AlignedVector<float> v_bias;         // latents: [num_kv_heads][value_dims]

 private:
  void PrepareFormats();
  void PrepareRope();
  void PrepareReconstruct(const AttentionSpec& spec);
  void AddJoint(const AttentionSpec& spec, const float* k_up, PageFormat& format) const;
  void AddSegments(const AttentionSpec& spec, const float* k_up, PageFormat& format) const;
  void OverPairScales(PageFormat& format) const;
  void PrepareAbsorbed(const AttentionSpec& spec);
  void PrepareValues(const AttentionSpec& spec);
};

}  // namespace latentd
