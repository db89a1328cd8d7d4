#include "kernels/cpu/activation_block.h"

#include <limits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation_block.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace latentd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

void QuantizeRow(const float* row, int64_t k, ActivationBlock* blocks) {
  const hn::CappedTag<float, 16> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::Rebind<int8_t, decltype(df)> d8;
  constexpr int kLanes = hn::MaxLanes(df);
  const auto magnitude_bits = hn::Set(di, 0x7fffffff);
  for (int64_t b = 0; b < k / 32; ++b) {
    const float* x = row + 32 * b;
    ActivationBlock& out = blocks[b];
    // The order of non-negative floats is that of their bits, with infinities and NaN above all.
    auto largest = hn::Zero(di);
    for (int i = 0; i < 32; i += kLanes) {
      largest = hn::Max(largest, hn::And(hn::BitCast(di, hn::LoadU(df, x + i)), magnitude_bits));
    }
    const int32_t bits = hn::GetLane(hn::MaxOfLanes(di, largest));
    float absmax;
    __builtin_memcpy(&absmax, &bits, sizeof(absmax));
    if (bits >= 0x7f800000) absmax = std::numeric_limits<float>::quiet_NaN();
    out.scale = absmax / 127.0f;
    // Magnitudes below 2^-120 would overflow the inverse: they are nothing, as zero is.
    const bool coded = absmax >= 0x1p-120f;
    if (absmax < 0x1p-120f) out.scale = 0.0f;
    const auto inverse = hn::Set(df, coded ? 127.0f / absmax : 0.0f);
    for (int half = 0; half < 2; ++half) {
      auto sum = hn::Zero(di);
      for (int i = 16 * half; i < 16 * half + 16; i += kLanes) {
        auto codes = hn::NearestInt(hn::Mul(hn::LoadU(df, x + i), inverse));
        if (!coded) codes = hn::Zero(di);
        hn::StoreU(hn::DemoteTo(d8, codes), d8, out.codes + i);
        sum = hn::Add(sum, codes);
      }
      out.minus_half_sum[half] = -hn::GetLane(hn::SumOfLanes(di, sum));
    }
    out.minus_sum = out.minus_half_sum[0] + out.minus_half_sum[1];
    out.scaled_sum = out.scale * static_cast<float>(-out.minus_sum);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace latentd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace latentd {

HWY_EXPORT(QuantizeRow);

void QuantizeActivations(const float* row, int64_t k, ActivationBlock* blocks) {
  HWY_DYNAMIC_DISPATCH(QuantizeRow)(row, k, blocks);
}

}  // namespace latentd
#endif  // HWY_ONCE
