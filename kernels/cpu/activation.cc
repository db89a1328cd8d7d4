#include "kernels/cpu/activation.h"

#include <algorithm>

#include "base/check.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/activation.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace latentd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using VF = hn::Vec<DF>;
constexpr int kLanes = hn::MaxLanes(DF());

// x * sigmoid(a); the bound keeps the exponential finite where the product is nothing anyway.
HWY_INLINE VF TimesSigmoid(VF x, VF a) {
  const DF df;
  const VF exponent = hn::Min(hn::Neg(a), hn::Set(df, 88.0f));
  return hn::Div(x, hn::Add(hn::Set(df, 1.0f), hn::Exp(df, exponent)));
}

HWY_INLINE VF SiluGated(VF gate, VF up) { return hn::Mul(TimesSigmoid(gate, gate), up); }

// x (1 + tanh u) / 2 = x sigmoid(2u), u = sqrt(2 / pi) (x + 0.044715 x^3).
HWY_INLINE VF GeluTanh(VF x) {
  const DF df;
  const VF cubic = hn::Mul(hn::Set(df, 0.044715f), hn::Mul(hn::Mul(x, x), x));
  return TimesSigmoid(x, hn::Mul(hn::Set(df, 1.5957691216f), hn::Add(x, cubic)));
}

// up is null for the kinds without it.
void Activate(ActivationKind kind, const float* gate, const float* up, int64_t count, float* out) {
  LATENTD_CHECK(kind != ActivationKind::kSiluGated || up != nullptr);
  const DF df;
  const auto apply = [&](const float* g, const float* u, float* o) HWY_ATTR {
    const VF x = hn::LoadU(df, g);
    hn::StoreU(kind == ActivationKind::kSiluGated ? SiluGated(x, hn::LoadU(df, u)) : GeluTanh(x),
               df, o);
  };
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) apply(gate + i, up == nullptr ? up : up + i, out + i);
  if (i < count) {
    float g[kLanes] = {}, u[kLanes] = {};
    std::copy(gate + i, gate + count, g);
    if (up != nullptr) std::copy(up + i, up + count, u);
    apply(g, u, g);
    std::copy(g, g + (count - i), out + i);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace latentd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace latentd {

HWY_EXPORT(Activate);

void CpuActivation(ThreadPool& pool, const ActivationParams& p) {
  constexpr int64_t kValuesPerChunk = 8192;
  const int64_t count = p.rows * p.dims;
  pool.ParallelFor(count, kValuesPerChunk, [&](int64_t begin, int64_t end, int) {
    HWY_DYNAMIC_DISPATCH(Activate)
    (p.kind, p.gate + begin, p.up == nullptr ? nullptr : p.up + begin, end - begin, p.out + begin);
  });
}

}  // namespace latentd
#endif  // HWY_ONCE
