#include "kernels/cpu/norm.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/norm.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace latentd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;
constexpr int kLanes = hn::MaxLanes(DF());
constexpr int kPartialSums = 32;
constexpr int kParts = kPartialSums / kLanes;

// Sum over i of f(x[i]); lanes past the end count as nothing.
template <class F>
HWY_INLINE float SumOver(const float* x, int dims, const F& f) {
  const DF df;
  VF sums[kParts];
  for (VF& sum : sums) sum = hn::Zero(df);
  int i = 0;
  for (; i + kPartialSums <= dims; i += kPartialSums) {
    for (int p = 0; p < kParts; ++p) {
      sums[p] = hn::Add(sums[p], f(hn::LoadU(df, x + i + p * kLanes)));
    }
  }
  if (i < dims) {
    HWY_ALIGN float rest[kPartialSums] = {};
    std::copy(x + i, x + dims, rest);
    for (int p = 0; p < kParts; ++p) {
      const int count = std::clamp(dims - i - p * kLanes, 0, kLanes);
      const VF value = f(hn::Load(df, rest + p * kLanes));
      sums[p] = hn::Add(sums[p], hn::IfThenElseZero(hn::FirstN(df, count), value));
    }
  }
  VF total = sums[0];
  for (int p = 1; p < kParts; ++p) total = hn::Add(total, sums[p]);
  return hn::GetLane(hn::SumOfLanes(df, total));
}

void NormRow(const NormParams& p, const float* in, float* out) {
  const DF df;
  float mean_value = 0.0f;
  if (p.kind == NormKind::kLayer) {
    mean_value = SumOver(in, p.dims, [](VF x) HWY_ATTR { return x; }) / static_cast<float>(p.dims);
  }
  const VF mean = hn::Set(df, mean_value);
  const float squares = SumOver(in, p.dims, [&](VF x) HWY_ATTR {
    const VF centred = hn::Sub(x, mean);
    return hn::Mul(centred, centred);
  });
  const VF inverse =
      hn::Set(df, 1.0f / std::sqrt(squares / static_cast<float>(p.dims) + p.epsilon));
  const auto normed = [&](VF x, VF weight, VF bias) HWY_ATTR {
    return hn::Add(hn::Mul(hn::Mul(hn::Sub(x, mean), inverse), weight), bias);
  };
  int i = 0;
  for (; i + kLanes <= p.dims; i += kLanes) {
    const VF bias = p.bias == nullptr ? hn::Zero(df) : hn::LoadU(df, p.bias + i);
    hn::StoreU(normed(hn::LoadU(df, in + i), hn::LoadU(df, p.weight + i), bias), df, out + i);
  }
  if (i < p.dims) {
    HWY_ALIGN float x[kLanes] = {}, weight[kLanes] = {}, bias[kLanes] = {};
    std::copy(in + i, in + p.dims, x);
    std::copy(p.weight + i, p.weight + p.dims, weight);
    if (p.bias != nullptr) std::copy(p.bias + i, p.bias + p.dims, bias);
    hn::Store(normed(hn::Load(df, x), hn::Load(df, weight), hn::Load(df, bias)), df, x);
    std::copy(x, x + (p.dims - i), out + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace latentd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace latentd {

HWY_EXPORT(NormRow);

void CpuNorm(ThreadPool& pool, const NormParams& p) {
  constexpr int64_t kRowsPerChunk = 8;  // fewer are not worth a second thread
  pool.ParallelFor(p.rows, kRowsPerChunk, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      HWY_DYNAMIC_DISPATCH(NormRow)(p, p.in + r * p.dims, p.out + r * p.dims);
    }
  });
}

}  // namespace latentd
#endif  // HWY_ONCE
