// The states of a softmax over parts of what a row sees: [value_dims | largest score, sum of
// weights], one part after the other folded into the first.

#include <algorithm>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/attention_math-inl.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/dtype.h"

// Per-target include guard, as Highway's own -inl.h files have.
#if defined(LATENTD_KERNELS_CPU_ATTENTION_STATE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LATENTD_KERNELS_CPU_ATTENTION_STATE_INL_H_
#undef LATENTD_KERNELS_CPU_ATTENTION_STATE_INL_H_
#else
#define LATENTD_KERNELS_CPU_ATTENTION_STATE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace latentd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// state = state and then part.
inline void FoldState(const float* part, int dims, float* state) {
  const DF df;
  const float largest = std::max(state[dims], part[dims]);
  const float a = Exp2(state[dims] - largest), b = Exp2(part[dims] - largest);
  const VF a_lanes = hn::Set(df, a), b_lanes = hn::Set(df, b);
  for (int d = 0; d < dims; d += kLanes) {
    const VF kept = hn::Mul(a_lanes, hn::Load(df, state + d));
    hn::Store(hn::MulAdd(b_lanes, hn::Load(df, part + d), kept), df, state + d);
  }
  state[dims + 1] = a * state[dims + 1] + b * part[dims + 1];
  state[dims] = largest;
}

inline float SumOfDenominators(const float* denominators) {
  const DF df;
  VF lanes = hn::Zero(df);
  for (int i = 0; i < kSumLanes; i += kLanes) {
    lanes = hn::Add(lanes, hn::Load(df, denominators + i));
  }
  return hn::GetLane(hn::SumOfLanes(df, lanes));
}

inline void WriteOutput(const CpuAttentionPlan& plan, const float* state, float* out) {
  const float inverse = 1.0f / state[plan.value_dims + 1];
  for (int d = 0; d < plan.spec().head_dim; ++d) out[d] = state[d] * inverse;
}

// ---- Exact sinks ----

// One KV head's sinks as fp32 rows of value_dims: keys, then values. `stored` as Sinks() gives it.
inline void DecodeSinks(const CpuAttentionPlan& plan, const uint16_t* stored, int kv_head,
                        float* out) {
  const CacheLayer& layer = plan.spec().cache;
  const int head_dim = plan.spec().head_dim;
  stored += int64_t{kv_head} * head_dim;
  for (int row = 0; row < 2 * layer.sinks; ++row, stored += layer.sink_dims) {
    const auto* halves = reinterpret_cast<const hwy::float16_t*>(stored);
    int d = 0;
    for (; d + kLanes <= head_dim; d += kLanes) hn::Store(LoadValues(halves + d), DF(), out + d);
    for (; d < head_dim; ++d) out[d] = HalfToFloat(stored[d]);
    std::fill(out + head_dim, out + plan.value_dims, 0.0f);
    out += plan.value_dims;
  }
}

// The state of one query over the sinks that it sees. q [head_dim] as the op takes it; `slope`
// times (the sink's position - the query's) is added to the scores.
inline void AttendSinks(const CpuAttentionPlan& plan, const float* sinks, const float* q,
                        TokenRange seen, float slope, int position, float* state) {
  const DF df;
  const int dims = plan.value_dims, head_dim = plan.spec().head_dim;
  alignas(64) float query[kMaxRowDims];
  alignas(64) float scores[kBlockTokens];
  alignas(64) float denominators[kSumLanes] = {};
  std::fill(std::copy_n(q, head_dim, query), query + dims, 0.0f);
  std::fill(std::begin(scores), std::end(scores), 0.0f);
  for (int t = seen.begin; t < seen.end; ++t) {
    VF sum = hn::Zero(df);
    for (int d = 0; d < dims; d += kLanes) {
      sum = hn::MulAdd(hn::Load(df, query + d), hn::Load(df, sinks + t * dims + d), sum);
    }
    scores[t] = hn::GetLane(hn::SumOfLanes(df, sum)) * plan.query_scale +
                slope * static_cast<float>(t - position);
  }
  float largest = -HUGE_VALF;
  UpdateSoftmax(scores, seen, &largest, denominators);
  const float* values = sinks + plan.spec().cache.sinks * dims;
  for (int d = 0; d < dims; d += kLanes) {
    VF sum = hn::Zero(df);
    for (int t = seen.begin; t < seen.end; ++t) {
      sum = hn::MulAdd(hn::Set(df, scores[t]), hn::Load(df, values + t * dims + d), sum);
    }
    hn::Store(sum, df, state + d);
  }
  state[dims] = largest;
  state[dims + 1] = SumOfDenominators(denominators);
}

}  // namespace HWY_NAMESPACE
}  // namespace latentd
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
