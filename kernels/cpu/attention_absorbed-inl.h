// Scores of absorbed queries (k_up^T q) on the latents' codes as integers, on AMX: each query, in
// two int8 parts 254 apart, meets the codes as they are stored, 16 queries of a K latent head at a
// time. What is rounded off is 2^-15 of a query's largest value in a segment.

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/amx_product.h"
#include "kernels/cpu/attention_codes-inl.h"
#include "kernels/cpu/attention_math-inl.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/cache_tile-inl.h"

// Per-target include guard, as Highway's own -inl.h files have.
#if defined(LATENTD_KERNELS_CPU_ATTENTION_ABSORBED_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LATENTD_KERNELS_CPU_ATTENTION_ABSORBED_INL_H_
#undef LATENTD_KERNELS_CPU_ATTENTION_ABSORBED_INL_H_
#else
#define LATENTD_KERNELS_CPU_ATTENTION_ABSORBED_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace latentd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// One query [k_dims] into its row of a tile of AbsorbedKeys.
inline void StoreQueryParts(const AbsorbedKeys& keys, const float* query, int row, float* tile) {
  const DF df;
  const DI di;
  for (const AbsorbedKeys::Part& part : keys.parts) {
    auto top = hn::Zero(di);
    VF sum = hn::Zero(df);
    for (int d = 0; d < part.dims; d += kLanes) {
      const VF x = hn::Load(df, query + d);
      // As integers, floats without a sign keep their order, and a NaN is above all.
      top = hn::Max(top, hn::BitCast(di, hn::Abs(x)));
      sum = hn::Add(sum, x);
    }
    const PartScale scale = ScaleOfParts(hn::GetLane(hn::BitCast(df, hn::MaxOfLanes(di, top))));
    tile[part.scale_offset + row] = scale.scale;
    tile[part.scale_offset + kAmxRows + row] = hn::GetLane(hn::SumOfLanes(df, sum));
    auto* high = reinterpret_cast<int8_t*>(tile + part.factor_offset) + row * part.row_bytes;
    int8_t* low = high + kAmxRows * part.row_bytes;
    for (int d = 0; d < part.dims; d += kLanes) {
      StoreParts(hn::Load(df, query + d), scale, high + d, low + d);
    }
    std::fill(high + part.dims, high + part.row_bytes, int8_t{0});
    std::fill(low + part.dims, low + part.row_bytes, int8_t{0});
    query += part.dims;
  }
}

// A page's latent head for ScoreTile: per segment scale[64], offset[64], words.
inline void DecodeAbsorbedKeys(const PageFormat& format, const uint8_t* head, float* source) {
  const CachePlane& plane = format.layer.k;
  for (size_t s = 0; s < plane.segments.size(); ++s) {
    const Segment& segment = plane.segments[s];
    const auto index = static_cast<int>(s);
    DecodeSignedScales(segment.codec, head + plane.scale_offset(index), source,
                       source + kBlockTokens);
    KeyWords(segment, head + plane.segment_offset(index),
             reinterpret_cast<uint8_t*>(source + 2 * kBlockTokens));
    source += format.absorbed.parts[s].source_floats;
  }
}

// scores [rows][64] of a tile's first `rows` queries. (What lies in the other rows could be numbers
// that are slow to multiply.)
inline void ScoreTile(const AbsorbedKeys& keys, const float* tile, int rows, const float* source,
                      float* scores) {
  const DF df;
  alignas(64) int32_t products[2][kAmxRows * kBlockTokens];
  for (size_t s = 0; s < keys.parts.size(); ++s) {
    const AbsorbedKeys::Part& part = keys.parts[s];
    const auto* factors = reinterpret_cast<const int8_t*>(tile + part.factor_offset);
    const auto* words = reinterpret_cast<const uint8_t*>(source + 2 * kBlockTokens);
    AmxSignedProduct(factors, part.row_bytes, 2 * kAmxRows, words, products[0]);
    for (int row = 0; row < rows; ++row) {
      const VF scale = hn::Set(df, tile[part.scale_offset + row]);
      const VF sum = hn::Set(df, tile[part.scale_offset + kAmxRows + row]);
      for (int t = 0; t < kBlockTokens; t += kLanes) {
        const int at = row * kBlockTokens + t;
        VF score = hn::Mul(scale, SumOfParts(products[0] + at, products[1] + at));
        score = hn::Mul(score, hn::Load(df, source + t));
        if (part.has_offset) {
          score = hn::MulAdd(sum, hn::Load(df, source + kBlockTokens + t), score);
        }
        if (s > 0) score = hn::Add(score, hn::Load(df, scores + at));
        hn::Store(score, df, scores + at);
      }
    }
    source += part.source_floats;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace latentd
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
