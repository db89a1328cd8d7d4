// Keys rebuilt from latents: one KV head's [2 * pairs][64 tokens] tile of RoPE(k_up h + k_bias),
// rotated by the token's offset in its block only (the queries are rotated back by the block's
// start instead).

#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/amx_product.h"
#include "kernels/cpu/attention_math-inl.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/cache_tile-inl.h"
#include "kernels/cpu/int8_dot-inl.h"

// Per-target include guard, as Highway's own -inl.h files have.
#if defined(LATENTD_KERNELS_CPU_KEY_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LATENTD_KERNELS_CPU_KEY_TILE_INL_H_
#undef LATENTD_KERNELS_CPU_KEY_TILE_INL_H_
#else
#define LATENTD_KERNELS_CPU_KEY_TILE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace latentd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The latents of one head and block as the products take them, for all KV heads that share them.
// Per segment, at its source_offset: scale[64], offset[64], then words (codes) or fp32 latents
// [dims][64].
inline void DecodeKeySources(const PageFormat& format, const uint8_t* head, float* sources) {
  for (const KUpSegment& k_up : format.k_up) {
    const Segment& segment = format.layer.k.segments[k_up.index];
    const uint8_t* from = head + k_up.cache_offset;
    float* to = sources + k_up.source_offset;
    float* latents = to + 2 * kBlockTokens;
    if (k_up.integer) {
      DecodeScales(segment.codec, head + k_up.scale_offset, to, to + kBlockTokens);
      UnpackWords(segment, from, reinterpret_cast<uint8_t*>(latents));
    } else {
      DecodeKeys(segment, from, latents);
    }
  }
}

// As AmxProduct, for every machine. Signed words are taken as unsigned ones, 128 above.
template <bool kSigned = false>
inline void Int8Product(const int8_t* factors, int row_bytes, int dims, int rows,
                        const uint8_t* words, int32_t* out) {
  constexpr int kRows = 4, kVectors = kLanes == 16 ? 4 : 2;
  const DI di;
  const DBytes d8;
  for (int r = 0; r < rows; r += kRows, factors += kRows * row_bytes, out += kRows * kBlockTokens) {
    for (int first = 0; first < kBlockTokens; first += kVectors * kLanes) {
      hn::Vec<DI> sums[kRows][kVectors];
      for (int i = 0; i < kRows; ++i) {
        for (int v = 0; v < kVectors; ++v) sums[i][v] = hn::Zero(di);
      }
      for (int d = 0; d < dims; d += 4) {
        hn::Vec<DBytes> codes[kVectors];
        for (int v = 0; v < kVectors; ++v) {
          codes[v] = hn::Load(d8, words + d * kBlockTokens + (first + v * kLanes) * 4);
          if constexpr (kSigned) codes[v] = hn::Xor(codes[v], hn::Set(d8, 0x80));
        }
        for (int i = 0; i < kRows; ++i) {
          for (int v = 0; v < kVectors; ++v) {
            sums[i][v] = DotQuad(sums[i][v], codes[v], factors + i * row_bytes + d);
          }
        }
      }
      for (int i = 0; i < kRows; ++i) {
        for (int v = 0; v < kVectors; ++v) {
          hn::Store(sums[i][v], di, out + i * kBlockTokens + first + v * kLanes);
        }
      }
    }
  }
}

// x, y = (x, y) rotated by the angle of each token's offset.
struct Rotation {
  const float* cos;  // [pairs][64]
  const float* sin;
};
HWY_INLINE void Rotate(const Rotation& r, int64_t at, VF& x, VF& y) {
  const DF df;
  const VF c = hn::Load(df, r.cos + at), s = hn::Load(df, r.sin + at);
  const VF rotated = hn::NegMulAdd(y, s, hn::Mul(x, c));
  y = hn::MulAdd(x, s, hn::Mul(y, c));
  x = rotated;
}

// Adds one segment's integer products to the tile (or starts it from the bias), and rotates it if
// this is the last one.
template <bool kSymmetric, bool kTwoParts>
inline void AddIntegers(const CpuAttentionPlan& plan, const KUpSegment& segment, int kv_head,
                        const float* source, const int32_t* sums, int first_pair, bool first,
                        bool last, float* tile) {
  const DF df;
  const DI di;
  const int pairs = plan.pairs, rows = 2 * pairs;
  const float* bias = plan.k_bias.data() + int64_t{kv_head} * rows;
  const float* scales = segment.scales.data() + int64_t{kv_head} * rows;
  const float* row_sums = segment.row_sums.data() + int64_t{kv_head} * rows;
  const Rotation rotation{plan.cos.data(), plan.sin.data()};
  const auto value = [&](int row, int sums_row, int t) HWY_ATTR {
    const int at = row * kBlockTokens + t;
    const int32_t* sum_at = sums + sums_row * kBlockTokens + t;
    const VF token_scale = hn::Load(df, source + t);
    const VF row_sum = hn::Set(df, row_sums[row]);
    VF sum = hn::ConvertTo(df, hn::Load(di, sum_at));
    if constexpr (kTwoParts) {
      const VF low = hn::ConvertTo(df, hn::Load(di, sum_at + 2 * kGroupPairs * kBlockTokens));
      sum = hn::MulAdd(low, hn::Set(df, 1.0f / kPartRatio), sum);
    }
    const VF base = first ? hn::Set(df, bias[row]) : hn::Load(df, tile + at);
    if constexpr (kSymmetric) {
      return hn::MulAdd(token_scale, hn::MulAdd(hn::Set(df, scales[row]), sum, row_sum), base);
    }
    const VF offset = hn::Load(df, source + kBlockTokens + t);
    return hn::MulAdd(token_scale, hn::Mul(hn::Set(df, scales[row]), sum),
                      hn::MulAdd(offset, row_sum, base));
  };
  for (int i = 0; i < kGroupPairs; ++i) {
    const int j = first_pair + i;
    for (int t = 0; t < kBlockTokens; t += kLanes) {
      VF x = value(j, i, t), y = value(pairs + j, kGroupPairs + i, t);
      if (last) Rotate(rotation, j * kBlockTokens + t, x, y);
      hn::Store(x, df, tile + j * kBlockTokens + t);
      hn::Store(y, df, tile + (pairs + j) * kBlockTokens + t);
    }
  }
}

// Adds one segment's fp32 product, likewise.
inline void AddFloats(const CpuAttentionPlan& plan, const KUpSegment& segment, int kv_head,
                      const float* source, bool first, bool last, float* tile) {
  const DF df;
  const int pairs = plan.pairs, rows = 2 * pairs;
  if (first) {
    const float* bias = plan.k_bias.data() + int64_t{kv_head} * rows;
    for (int r = 0; r < rows; ++r) {
      for (int t = 0; t < kBlockTokens; t += kLanes) {
        hn::Store(hn::Set(df, bias[r]), df, tile + r * kBlockTokens + t);
      }
    }
  }
  MultiplyRows(segment.fp32.data() + int64_t{kv_head} * rows * segment.dims, segment.dims, rows,
               source + 2 * kBlockTokens, segment.dims, /*accumulate=*/true, /*ahead=*/0, tile);
  if (!last) return;
  const Rotation rotation{plan.cos.data(), plan.sin.data()};
  for (int at = 0; at < pairs * kBlockTokens; at += kLanes) {
    VF x = hn::Load(df, tile + at), y = hn::Load(df, tile + pairs * kBlockTokens + at);
    Rotate(rotation, at, x, y);
    hn::Store(x, df, tile + at);
    hn::Store(y, df, tile + pairs * kBlockTokens + at);
  }
}

// Likewise for an integer segment. The integers of a few pairs at a time stay in the first-level
// cache.
inline void AddIntegerSegment(const CpuAttentionPlan& plan, const KUpSegment& segment, int kv_head,
                              const float* source, bool first, bool last, float* tile) {
  constexpr int kGroupRows = 2 * kGroupPairs;
  alignas(64) int32_t sums[2 * kGroupRows * kBlockTokens];
  const auto* words = reinterpret_cast<const uint8_t*>(source + 2 * kBlockTokens);
  const int64_t group_bytes = int64_t{kGroupRows} * segment.row_bytes;
  const int64_t part_bytes = plan.pairs / kGroupPairs * group_bytes;
  const int8_t* factors = segment.factors.data() + kv_head * segment.parts * part_bytes;
  const auto add = !segment.symmetric   ? AddIntegers<false, false>
                   : segment.parts == 2 ? AddIntegers<true, true>
                                        : AddIntegers<true, false>;
  for (int pair = 0; pair < plan.pairs; pair += kGroupPairs, factors += group_bytes) {
    for (int part = 0; part < segment.parts; ++part) {
      int32_t* out = sums + part * kGroupRows * kBlockTokens;
      if (plan.use_amx) {
        AmxProduct(factors + part * part_bytes, segment.row_bytes, kGroupRows, words, out);
      } else {
        Int8Product(factors + part * part_bytes, segment.row_bytes, segment.dims, kGroupRows, words,
                    out);
      }
    }
    add(plan, segment, kv_head, source, sums, pair, first, last, tile);
  }
}

// tile [2 * pairs][64] of one KV head, from what DecodeKeySources made of a page of `format`.
inline void RebuildSegmentKeys(const CpuAttentionPlan& plan, const PageFormat& format, int kv_head,
                               const float* sources, float* tile) {
  for (size_t s = 0; s < format.k_up.size(); ++s) {
    const KUpSegment& segment = format.k_up[s];
    const auto add = segment.integer ? AddIntegerSegment : AddFloats;
    add(plan, segment, kv_head, sources + segment.source_offset, s == 0,
        s + 1 == format.k_up.size(), tile);
  }
}

// out = the queries [count][2 * pairs] rotated back by the angles of the block's start, times the
// pairs' scales where there are any.
inline void RotateBack(const float* queries, int count, int pairs, const float* cos,
                       const float* sin, const float* scales, float* out) {
  const hn::CappedTag<float, 8> d;
  for (int i = 0; i < count; ++i) {
    const float* q = queries + int64_t{i} * 2 * pairs;
    float* to = out + int64_t{i} * 2 * pairs;
    for (int j = 0; j < pairs; j += hn::Lanes(d)) {
      auto x = hn::LoadU(d, q + j), y = hn::LoadU(d, q + pairs + j);
      if (scales != nullptr) {
        const auto scale = hn::LoadU(d, scales + j);
        x = hn::Mul(x, scale);
        y = hn::Mul(y, scale);
      }
      const auto c = hn::LoadU(d, cos + j), s = hn::LoadU(d, sin + j);
      hn::StoreU(hn::MulAdd(y, s, hn::Mul(x, c)), d, to + j);
      hn::StoreU(hn::NegMulAdd(x, s, hn::Mul(y, c)), d, to + pairs + j);
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace latentd
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
