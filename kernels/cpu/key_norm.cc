// Inverse norms of rebuilt keys. head_dim x dims multiplications a token and KV head; the factors
// come from the second-level cache, so four tokens share each load. Every (row, token) has one
// accumulator whose order does not depend on how many tokens there are.

#include "kernels/cpu/key_norm.h"

#include <algorithm>
#include <cmath>

#include "kernels/dtype.h"
#include "kernels/params.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/key_norm.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace latentd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
using Floats = hn::CappedTag<float, 16>;

// squares[t] = sum over the rows of (k_up latent + k_bias)^2.
template <int kTokens>
HWY_INLINE void SumSquares(const KeyNormFactors& f, const float* latents, int64_t stride,
                           float* squares) {
  const Floats df;
  std::fill_n(squares, kTokens, 0.0f);
  for (int row = 0; row < f.head_dim; ++row) {
    const float* k_up = f.k_up + static_cast<int64_t>(row) * f.dims;
    hn::Vec<Floats> sums[kTokens];
    for (auto& sum : sums) sum = hn::Zero(df);
    for (int d = 0; d < f.dims; d += hn::Lanes(df)) {
      const auto factor = hn::LoadU(df, k_up + d);
      for (int t = 0; t < kTokens; ++t) {
        sums[t] = hn::MulAdd(factor, hn::LoadU(df, latents + t * stride + d), sums[t]);
      }
    }
    for (int t = 0; t < kTokens; ++t) {
      const float key = hn::GetLane(hn::SumOfLanes(df, sums[t])) + f.k_bias[row];
      squares[t] += key * key;
    }
  }
}

void KeySquares(const KeyNormFactors& f, const float* latents, int64_t stride, int tokens,
                float* squares) {
  int t = 0;
  for (; t + kKeyNormTokens <= tokens; t += kKeyNormTokens) {
    SumSquares<kKeyNormTokens>(f, latents + t * stride, stride, squares + t);
  }
  for (; t < tokens; ++t) SumSquares<1>(f, latents + t * stride, stride, squares + t);
}

}  // namespace HWY_NAMESPACE
}  // namespace latentd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace latentd {

HWY_EXPORT(KeySquares);

void InverseKeyNorms(const KeyNormFactors& factors, const float* latents, int64_t latent_stride,
                     int tokens, uint16_t* norms) {
  float squares[kKeyNormTokens];
  for (int t = 0; t < tokens; t += kKeyNormTokens) {
    const int count = std::min(kKeyNormTokens, tokens - t);
    HWY_DYNAMIC_DISPATCH(KeySquares)
    (factors, latents + t * latent_stride, latent_stride, count, squares);
    for (int i = 0; i < count; ++i) {
      const float mean = squares[i] / static_cast<float>(factors.head_dim);
      const float inverse = 1.0f / std::sqrt(mean + factors.epsilon);
      norms[t + i] = FloatToHalf(inverse > kMaxKeyNorm ? kMaxKeyNorm : inverse);
    }
  }
}

}  // namespace latentd
#endif  // HWY_ONCE
