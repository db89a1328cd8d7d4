#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/engine.h"
#include "engine/text/tokenizer.h"

namespace latentd {

// A sequence whose tail is judged: the tokens from `start` (>= 1, below tokens.size()) on, given
// those before.
struct Continuation {
  std::vector<int32_t> tokens;
  int start = 0;
};

struct ContinuationScore {
  double logprob = 0;     // of the tail, natural log
  int tokens = 0;         // of the tail
  int greedy_tokens = 0;  // those that are the likeliest, given all before them
  bool greedy() const { return greedy_tokens == tokens; }  // greedy decoding gives the tail
};

// The tokens of context + continuation, split as lm-evaluation-harness does: white space at the end
// of the context counts as the continuation's, which is what remains of the tokens of both together
// after as many as the context has alone. No special tokens. INVALID_ARGUMENT when one of the two
// is empty.
absl::StatusOr<Continuation> EncodeContinuation(const Tokenizer& tokenizer, std::string context,
                                                std::string continuation);

// INVALID_ARGUMENT when a sequence of the question is longer than the context or the pool: "has 902
// tokens, the context is 900".
absl::Status CheckFits(const std::vector<Continuation>& question, const EngineInfo& info);

// Scores the continuations of each question, [question][continuation], as many questions at a time
// as the engine has seats and blocks for. What the continuations of a question have in common is
// computed once, then each goes on from there in the same blocks and seat, over what the one before
// left: a row sees only positions up to its own. Where that one went on to another page (so that
// the seat's own page is no more that of the common part) the page's rows are computed again. So a
// score does not depend on what else is asked.
//
// `greedy`: greedy_tokens is asked for, which takes the logits twice. INVALID_ARGUMENT names a
// question that does not fit, as CheckFits.
absl::StatusOr<std::vector<std::vector<ContinuationScore>>> ScoreContinuations(
    Engine& engine, absl::Span<const std::vector<Continuation>> questions, bool greedy);

}  // namespace latentd
