#include "engine/evaluation/row_divergence.h"

#include <algorithm>
#include <cmath>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "engine/evaluation/row_divergence.cc"
#include "hwy/foreach_target.h"
//
#include "hwy/contrib/math/math-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace latentd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DD = hn::ScalableTag<double>;
using DF = hn::Rebind<float, DD>;
using VD = hn::Vec<DD>;

// Sum of e^(x_i - top). Exp makes 0 of a NaN, so each value is added 0 times as well.
double SumExp(const float* x, int64_t n, float top) {
  const DD dd;
  const DF df;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(dd));
  VD sums = hn::Zero(dd);
  int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const VD value = hn::Sub(hn::PromoteTo(dd, hn::LoadU(df, x + i)), hn::Set(dd, top));
    sums = hn::Add(sums, hn::MulAdd(value, hn::Zero(dd), hn::Exp(dd, value)));
  }
  double sum = hn::GetLane(hn::SumOfLanes(dd, sums));
  for (; i < n; ++i) sum += std::exp(static_cast<double>(x[i]) - top);
  return sum;
}

// sums[0] = sum of e^(p_i - p_max), sums[1] = sum of e^(q_i - q_max),
// sums[2] = sum of e^(p_i - p_max) (p_i - q_i).
void SumRow(const float* p, const float* q, int64_t vocab, float p_max, float q_max, double* sums) {
  const DD dd;
  const DF df;
  const int64_t lanes = static_cast<int64_t>(hn::Lanes(dd));
  const VD p_top = hn::Set(dd, p_max), q_top = hn::Set(dd, q_max);
  VD p_sum = hn::Zero(dd), q_sum = hn::Zero(dd), cross = hn::Zero(dd);
  int64_t i = 0;
  for (; i + lanes <= vocab; i += lanes) {
    const VD x = hn::PromoteTo(dd, hn::LoadU(df, p + i));
    const VD y = hn::PromoteTo(dd, hn::LoadU(df, q + i));
    const VD e = hn::Exp(dd, hn::Sub(x, p_top));
    p_sum = hn::Add(p_sum, e);
    q_sum = hn::Add(q_sum, hn::Exp(dd, hn::Sub(y, q_top)));
    cross = hn::MulAdd(e, hn::Sub(x, y), cross);
  }
  sums[0] = hn::GetLane(hn::SumOfLanes(dd, p_sum));
  sums[1] = hn::GetLane(hn::SumOfLanes(dd, q_sum));
  sums[2] = hn::GetLane(hn::SumOfLanes(dd, cross));
  for (; i < vocab; ++i) {
    const double x = p[i], y = q[i];
    const double e = std::exp(x - p_max);
    sums[0] += e;
    sums[1] += std::exp(y - q_max);
    sums[2] += e * (x - y);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace latentd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace latentd {

HWY_EXPORT(SumExp);
HWY_EXPORT(SumRow);

double RowLogprob(absl::Span<const float> logits, int32_t next) {
  const float top = *std::max_element(logits.begin(), logits.end());
  return static_cast<double>(logits[next]) - top -
         std::log(HWY_DYNAMIC_DISPATCH(SumExp)(logits.data(), std::ssize(logits), top));
}

RowDivergence CompareRows(absl::Span<const float> p, absl::Span<const float> q, int32_t next) {
  const auto p_top = std::max_element(p.begin(), p.end());
  const auto q_top = std::max_element(q.begin(), q.end());
  double sums[3];
  HWY_DYNAMIC_DISPATCH(SumRow)
  (p.data(), q.data(), static_cast<int64_t>(p.size()), *p_top, *q_top, sums);
  const double p_lse = *p_top + std::log(sums[0]);
  const double q_lse = *q_top + std::log(sums[1]);
  return {.kl = sums[2] / sums[0] - p_lse + q_lse,
          .p_logprob = p[next] - p_lse,
          .q_logprob = q[next] - q_lse,
          .p_top = static_cast<int32_t>(p_top - p.begin()),
          .q_top = static_cast<int32_t>(q_top - q.begin())};
}

}  // namespace latentd
#endif  // HWY_ONCE
