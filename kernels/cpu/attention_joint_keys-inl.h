// Keys rebuilt from codes of few bits, whatever their segments: one integer product for all of
// their dims. A token's codes are first brought to one int8 scale, which it multiplies into its
// scores afterwards, as a pair's factor scale is multiplied into the queries. So a product goes to
// RoPE as it is. Segments of 8 bits, which deserve finer factors, are added to it.

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/attention_math-inl.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/cache_tile-inl.h"
#include "kernels/cpu/key_tile-inl.h"

// Per-target include guard, as Highway's own -inl.h files have.
#if defined(LATENTD_KERNELS_CPU_ATTENTION_JOINT_KEYS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LATENTD_KERNELS_CPU_ATTENTION_JOINT_KEYS_INL_H_
#undef LATENTD_KERNELS_CPU_ATTENTION_JOINT_KEYS_INL_H_
#else
#define LATENTD_KERNELS_CPU_ATTENTION_JOINT_KEYS_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace latentd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// One tile's codes c as odd int8 numbers: 2c - middle.
inline void OddCodes(uint8_t middle, uint8_t* words) {
  const DBytes d;
  const auto less = hn::Set(d, middle);
  for (int i = 0; i < kWordTileBytes; i += hn::Lanes(d)) {
    const auto v = hn::Load(d, words + i);
    hn::Store(hn::Sub(hn::Add(v, v), less), d, words + i);
  }
}

// One tile's codes c as int8: (2c - middle) ratio / 128, rounded, with the ratio of each token
// twice in its 32 bits.
inline void RescaleCodes(uint8_t middle, const uint32_t* ratios, uint8_t* words) {
  const DBytes d;
  const hn::Repartition<int16_t, DBytes> d16;
  const auto less = hn::Set(d, middle);
  const auto high_byte = hn::Set(d16, static_cast<int16_t>(0xff00));
  for (int t = 0; t < kBlockTokens; t += kLanes) {
    const auto ratio = hn::BitCast(d16, hn::Load(DU(), ratios + t));
    for (int quad = 0; quad < kTileDims / 4; ++quad) {
      uint8_t* at = words + (quad * kBlockTokens + t) * 4;
      const auto codes = hn::Load(d, at);
      const auto odd = hn::BitCast(d16, hn::Sub(hn::Add(codes, codes), less));
      // Bytes as the upper halves of 16-bit numbers.
      const auto even = hn::MulFixedPoint15(hn::ShiftLeft<8>(odd), ratio);
      const auto upper = hn::MulFixedPoint15(hn::And(odd, high_byte), ratio);
      const auto both = hn::Or(hn::AndNot(high_byte, even), hn::ShiftLeft<8>(upper));
      hn::Store(hn::BitCast(d, both), d, at);
    }
  }
}

// scales[64], one per token: what a step of its words is worth.
inline void JointScales(const PageFormat& format, const uint8_t* head, float* scales) {
  const DF df;
  const std::vector<int>& segments = format.joint.segments;
  alignas(64) float scale[kBlockTokens], unused[kBlockTokens];
  for (const int s : segments) {
    const Codec codec = format.layer.k.segments[s].codec;
    DecodeScales(codec, head + format.layer.k.scale_offset(s), scale, unused);
    // The largest value of the segment, over the largest word.
    const float most = segments.size() == 1
                           ? 0.5f
                           : 0.5f * static_cast<float>((1 << Info(codec).bits) - 1) / kMaxFactor;
    for (int t = 0; t < kBlockTokens; t += kLanes) {
      const VF one = hn::Mul(hn::Set(df, most), hn::Abs(hn::Load(df, scale + t)));
      const VF before = s == segments.front() ? hn::Zero(df) : hn::Load(df, scales + t);
      // A NaN of any segment stays: Max takes one of two as it likes.
      const VF nan = hn::Mul(hn::Zero(df), hn::Add(before, one));
      hn::Store(hn::Add(hn::Max(before, one), nan), df, scales + t);
    }
  }
  const VF least = hn::Set(df, kLeastScale);  // of a token that is all zeros
  for (int t = 0; t < kBlockTokens; t += kLanes) {
    const VF s = hn::Load(df, scales + t);
    hn::Store(hn::IfThenElse(hn::Eq(s, hn::Zero(df)), least, s), df, scales + t);
  }
}

// Source of one latent head's keys: scales[64], their inverses[64], then words [row_bytes / 4][64
// tokens][4 dims]; then, at their places, the sources of k_up's segments over the scales.
inline void DecodeJointSource(const PageFormat& format, const uint8_t* head, float* source) {
  const DF df;
  JointScales(format, head, source);
  float* inverses = source + kBlockTokens;
  for (int t = 0; t < kBlockTokens; t += kLanes) {
    hn::Store(hn::Div(hn::Set(df, 1.0f), hn::Load(df, source + t)), df, inverses + t);
  }
  auto* words = reinterpret_cast<uint8_t*>(source + 2 * kBlockTokens);
  const std::vector<int>& segments = format.joint.segments;
  alignas(64) float scale[kBlockTokens], unused[kBlockTokens];
  alignas(64) uint32_t ratios[kBlockTokens];
  for (const int s : segments) {
    const Segment& segment = format.layer.k.segments[s];
    const uint8_t* from = head + format.layer.k.segment_offset(s);
    DecodeScales(segment.codec, head + format.layer.k.scale_offset(s), scale, unused);
    for (int t = 0; t < kBlockTokens; t += kLanes) {
      const VF ratio =
          hn::Mul(hn::Mul(hn::Set(df, 64.0f), hn::Load(df, scale + t)), hn::Load(df, inverses + t));
      const auto half = hn::And(hn::NearestInt(ratio), hn::Set(DI(), 0xffff));
      hn::Store(hn::BitCast(DU(), hn::Or(half, hn::ShiftLeft<16>(half))), DU(), ratios + t);
    }
    UnpackWords(segment, from, words);
    const auto middle = static_cast<uint8_t>((1 << Info(segment.codec).bits) - 1);
    for (int dim = 0; dim < segment.dims; dim += kTileDims, words += kWordTileBytes) {
      if (segments.size() == 1) {
        OddCodes(middle, words);
      } else {
        RescaleCodes(middle, ratios, words);
      }
    }
  }
  DecodeKeySources(format, head, source);
  for (const KUpSegment& segment : format.k_up) {
    ScaleScores(inverses, source + segment.source_offset);
  }
}

// out[r][t] of kGroupPairs pairs, as AmxSignedProduct. Without AMX the words are multiplied as
// unsigned ones, 128 above.
inline void JointProduct(const CpuAttentionPlan& plan, const JointKUp& k_up, int64_t first_row,
                         const uint8_t* words, int32_t* out) {
  constexpr int kGroupRows = 2 * kGroupPairs;
  const int8_t* factors = k_up.factors.data() + first_row * k_up.row_bytes;
  if (plan.use_amx) {
    AmxSignedProduct(factors, k_up.row_bytes, kGroupRows, words, out);
    return;
  }
  Int8Product<true>(factors, k_up.row_bytes, k_up.dims, kGroupRows, words, out);
  const DI di;
  for (int r = 0; r < kGroupRows; ++r) {
    const auto above = hn::Set(di, 128 * k_up.row_sums[first_row + r]);
    for (int t = r * kBlockTokens; t < (r + 1) * kBlockTokens; t += kLanes) {
      hn::Store(hn::Sub(hn::Load(di, out + t), above), di, out + t);
    }
  }
}

// The products of kGroupPairs pairs from `first` on, biased and perhaps rotated, to their rows of
// the tile.
template <bool kBias, bool kRotate>
HWY_INLINE void RotateProducts(const CpuAttentionPlan& plan, const int32_t* sums, const float* bias,
                               const float* inverses, int first, float* tile) {
  const DF df;
  const DI di;
  const int pairs = plan.pairs;
  const Rotation rotation{plan.cos.data(), plan.sin.data()};
  for (int t = 0; t < kBlockTokens; t += kLanes) {
    const VF inverse = hn::Load(df, inverses + t);
    for (int i = 0; i < kGroupPairs; ++i) {
      const int j = first + i;
      VF x = hn::ConvertTo(df, hn::Load(di, sums + i * kBlockTokens + t));
      VF y = hn::ConvertTo(df, hn::Load(di, sums + (kGroupPairs + i) * kBlockTokens + t));
      if constexpr (kBias) {
        x = hn::MulAdd(inverse, hn::Set(df, bias[j]), x);
        y = hn::MulAdd(inverse, hn::Set(df, bias[pairs + j]), y);
      }
      if constexpr (kRotate) Rotate(rotation, j * kBlockTokens + t, x, y);
      hn::Store(x, df, tile + j * kBlockTokens + t);
      hn::Store(y, df, tile + (pairs + j) * kBlockTokens + t);
    }
  }
}

// tile [2 * pairs][64] of one KV head, over its factor and token scales. The next pairs' products
// are under way while the vectors rotate the last ones'.
inline void RebuildJointKeys(const CpuAttentionPlan& plan, const PageFormat& format, int kv_head,
                             const float* source, float* tile) {
  const JointKUp& k_up = format.joint;
  const int pairs = plan.pairs;
  const int64_t head_row = int64_t{kv_head} * 2 * pairs;
  const float* bias = k_up.bias.data() + head_row;
  const float* inverses = source + kBlockTokens;
  const auto* words = reinterpret_cast<const uint8_t*>(source + 2 * kBlockTokens);
  const bool alone = format.k_up.empty();
  const auto rotate = k_up.has_bias
                          ? alone ? RotateProducts<true, true> : RotateProducts<true, false>
                      : alone ? RotateProducts<false, true>
                              : RotateProducts<false, false>;
  alignas(64) int32_t sums[2][2 * kGroupPairs * kBlockTokens];
  JointProduct(plan, k_up, head_row, words, sums[0]);
  for (int first = 0; first < pairs; first += kGroupPairs) {
    const int now = first / kGroupPairs % 2;
    if (first + kGroupPairs < pairs) {
      JointProduct(plan, k_up, head_row + 2 * (first + kGroupPairs), words, sums[1 - now]);
    }
    rotate(plan, sums[now], bias, inverses, first, tile);
  }
  for (const KUpSegment& segment : format.k_up) {
    AddIntegerSegment(plan, segment, kv_head, source + segment.source_offset, /*first=*/false,
                      /*last=*/&segment == &format.k_up.back(), tile);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace latentd
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
