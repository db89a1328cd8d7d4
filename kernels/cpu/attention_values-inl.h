// Values mixed as integers, on AMX: a row's weights times the tokens' scales, rounded to two int8
// parts 254 apart, meet the codes as they are stored. What is rounded off is 2^-15 of the largest
// weight of the row and block. So codes never become floats, and a block's tile of values serves 16
// rows at once.

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/amx_product.h"
#include "kernels/cpu/attention_codes-inl.h"
#include "kernels/cpu/attention_math-inl.h"
#include "kernels/cpu/attention_memory.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/cache_tile-inl.h"

// Per-target include guard, as Highway's own -inl.h files have.
#if defined(LATENTD_KERNELS_CPU_ATTENTION_VALUES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LATENTD_KERNELS_CPU_ATTENTION_VALUES_INL_H_
#undef LATENTD_KERNELS_CPU_ATTENTION_VALUES_INL_H_
#else
#define LATENTD_KERNELS_CPU_ATTENTION_VALUES_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace latentd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Rows that wait for a full tile of 16: of several queries and KV heads of one V latent head.
class ValueBatch {
 public:
  explicit ValueBatch(const ItemMemory& memory) : m_(memory) {}

  // A page of codes for the rows that follow.
  void SetPage(const PageFormat& format, const uint8_t* head) {
    segments_ = &format.layer.v.segments;
    int first_dim = 0;
    for (size_t s = 0; s < segments_->size(); ++s) {
      const Segment& segment = (*segments_)[s];
      const CachePlane& plane = format.layer.v;
      DecodeSignedScales(segment.codec, head + plane.scale_offset(static_cast<int>(s)), Scales(s),
                         Offsets(s));
      ValueWords(segment, head + plane.segment_offset(static_cast<int>(s)),
                 m_.value_words + first_dim * kBlockTokens);
      first_dim += segment.dims;
    }
  }

  // sums = decay * sums + the values times weights[64]; done by Flush() at the latest.
  void Add(const float* weights, float decay, float* sums) {
    for (size_t s = 0; s < segments_->size(); ++s) AddSegment(s, weights);
    decay_[rows_] = decay;
    sums_[rows_] = sums;
    if (++rows_ == kAmxRows) Flush();
  }

  void Flush() {
    const uint8_t* words = m_.value_words;
    int first_dim = 0;
    for (size_t s = 0; s < segments_->size() && rows_ > 0; ++s) {
      const int dims = (*segments_)[s].dims;
      for (int dim = 0; dim < dims; dim += kFlushDims) {
        const int now = std::min(kFlushDims, dims - dim);
        AmxValueProduct(Parts(s), words, now / kTileDims, products_);
        for (int row = 0; row < rows_; ++row)
          AddProducts(s, row, now, sums_[row] + first_dim + dim);
        words += now * kBlockTokens;
      }
      first_dim += dims;
    }
    rows_ = 0;
  }

 private:
  static constexpr int kFlushDims = 64;  // whose products stay in the first-level cache

  float* Scales(size_t s) const { return m_.value_scales + s * 2 * kBlockTokens; }
  float* Offsets(size_t s) const { return Scales(s) + kBlockTokens; }
  int8_t* Parts(size_t s) const { return m_.value_parts + s * 2 * kAmxRows * kBlockTokens; }
  // Of a row: what its products are multiplied with, and what is added to all of them.
  float* RowScale(size_t s, int row) const { return m_.value_rows + (2 * s + 0) * kAmxRows + row; }
  float* RowOffset(size_t s, int row) const { return m_.value_rows + (2 * s + 1) * kAmxRows + row; }

  void AddSegment(size_t s, const float* weights) {
    const DF df;
    const DI di;
    const VF zero = hn::Zero(df);
    VF scaled[kTokenVectors];
    auto top = hn::Zero(di);
    VF offset_sum = zero;
    const bool has_offset = HasSignedOffset((*segments_)[s].codec);
    for (int v = 0; v < kTokenVectors; ++v) {
      const VF weight = hn::Load(df, weights + v * kLanes);
      // A weight of 0 takes nothing of a token, whatever its scale.
      const auto used = hn::Ne(weight, zero);
      scaled[v] = hn::IfThenElseZero(used, hn::Mul(weight, hn::Load(df, Scales(s) + v * kLanes)));
      // As integers, floats without a sign keep their order, and a NaN is above all.
      top = hn::Max(top, hn::BitCast(di, hn::Abs(scaled[v])));
      if (!has_offset) continue;
      const VF offset = hn::IfThenElseZero(used, hn::Load(df, Offsets(s) + v * kLanes));
      offset_sum = hn::MulAdd(weight, offset, offset_sum);
    }
    const PartScale scale = ScaleOfParts(hn::GetLane(hn::BitCast(df, hn::MaxOfLanes(di, top))));
    *RowScale(s, rows_) = scale.scale;
    *RowOffset(s, rows_) = has_offset ? hn::GetLane(hn::SumOfLanes(df, offset_sum)) : 0.0f;
    int8_t* high = Parts(s) + rows_ * kBlockTokens;
    int8_t* low = high + kAmxRows * kBlockTokens;
    for (int v = 0; v < kTokenVectors; ++v) {
      StoreParts(scaled[v], scale, high + v * kLanes, low + v * kLanes);
    }
  }

  void AddProducts(size_t s, int row, int dims, float* sums) const {
    const DF df;
    const VF decay = hn::Set(df, decay_[row]);
    const VF scale = hn::Set(df, *RowScale(s, row)), offset = hn::Set(df, *RowOffset(s, row));
    for (int d = 0; d < dims; d += kLanes) {
      const int32_t* high =
          products_ + (d / kTileDims * 2 * kAmxRows + row) * kTileDims + d % kTileDims;
      const VF value = SumOfParts(high, high + kAmxRows * kTileDims);
      const VF kept = hn::MulAdd(decay, hn::Load(df, sums + d), offset);
      hn::Store(hn::MulAdd(scale, value, kept), df, sums + d);
    }
  }

  const ItemMemory& m_;
  const std::vector<Segment>* segments_ = nullptr;
  int rows_ = 0;
  float decay_[kAmxRows];
  float* sums_[kAmxRows];
  alignas(64) int32_t products_[kFlushDims / kTileDims * 2 * kAmxRows * kTileDims];
};

}  // namespace HWY_NAMESPACE
}  // namespace latentd
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
