#pragma once

#include <cstdint>

#include "kernels/params.h"

namespace latentd {

// Draws one token from `logits` [vocab] as `row` asks. The steps, in order, on a copy of the logits
// in double:
//   1. ok = false for a NaN, a +infinity, or no finite logit; log probabilities are those of the
//      raw logits
//   2. repetition: l > 0 ? l / penalty : l * penalty, once per id in `tokens`; then minus presence
//      + frequency * count over the output
//   3. banned ids become -infinity; ok = false when nothing finite is left
//   4. temperature 0: the largest, the smallest id among equals; else weights
//      w = exp((l - max) / temperature)
//   5. in order of falling weight (ids rising among equals): top_k keeps the first k; top_p keeps
//      the shortest prefix whose share of the kept weights reaches top_p; min_p keeps weights of at
//      least min_p times the largest
//   6. u = RandomUniform(seed, position) times the kept weights' sum; the first id, in order of
//      ids, whose running sum exceeds u
// Ids outside [0, vocab) have no logit: steps 2 and 3 pass over them.
SampleResult ReferenceSampleRow(const float* logits, int64_t vocab, const SampleRow& row);

// log softmax(logits [vocab])[token], accumulated in double in index order.
float ReferenceLogProbability(const float* logits, int64_t vocab, int32_t token);

}  // namespace latentd
