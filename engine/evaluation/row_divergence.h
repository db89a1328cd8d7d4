#pragma once

#include <cstdint>

#include "absl/types/span.h"

namespace latentd {

// Two predictions of the same token: p the reference's, q the cache's, as raw logits.
struct RowDivergence {
  double kl = 0;         // KL(p || q) in nats
  double p_logprob = 0;  // of the token that came, natural log
  double q_logprob = 0;
  int32_t p_top = 0;  // the likeliest token, the smallest id among equals
  int32_t q_top = 0;
};

// Sums in double, from the raw logits: sum of e^(p_i - lse p) (p_i - q_i) - lse p + lse q. Not
// finite when a logit is not. p and q are [vocab], next is in [0, vocab). Any thread.
RowDivergence CompareRows(absl::Span<const float> p, absl::Span<const float> q, int32_t next);

// log softmax(logits)[next], natural log; the same as q_logprob of such a row but for rounding. Not
// finite when a logit is not. Any thread.
double RowLogprob(absl::Span<const float> logits, int32_t next);

}  // namespace latentd
