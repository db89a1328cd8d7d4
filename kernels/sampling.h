#pragma once

#include <cstdint>

#include "kernels/params.h"

namespace latentd {

// Draws one token from logits[vocab]: the definition of Ops::Sample, shared by every backend that
// samples on the host.
//
//   x      = logits; for each distinct id among row.tokens: x > 0 ? x / repetition_penalty : x *
//   repetition_penalty; for each
//            distinct id among the output: x -= presence_penalty + frequency_penalty * count
//   x[id]  = -inf for banned ids
//   greedy (temperature 0): the smallest id among the largest x
//   else     x /= temperature; candidates ordered by (x down, id up); keep the first top_k; p =
//   softmax of the kept; keep the
//            shortest prefix whose p sums to >= top_p; of these the ones with p >= min_p * p of the
//            first; draw by the uniform number of (seed, position)
//
// Logprobs are of the raw logits. A NaN, or no finite logit left to draw, gives ok = false.
// The order is total and every sum runs in it, so the result is a function of the arguments alone.
// No full sort: candidates are cut to what top_k or top_p can reach before they are ordered.
void SampleRowReference(const float* logits, int64_t vocab, const SampleRow& row,
                        SampleResult* result);

}  // namespace latentd
