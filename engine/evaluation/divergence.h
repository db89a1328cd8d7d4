#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/engine.h"
#include "engine/evaluation/windows.h"

namespace latentd {

// How far a cache's predictions are from a reference's, over all counted tokens of a text.
struct DivergenceResult {
  double kl_mean = 0;            // KL(reference || cache), nats per predicted token
  double kl_standard_error = 0;  // of the mean, tokens taken as independent
  double kl_p99 = 0;             // 99 % of the tokens have at most this (nearest rank)
  double top1 = 0;               // share of tokens whose likeliest prediction is the same
  double perplexity = 0;
  double reference_perplexity = 0;
  int64_t tokens = 0;
};

// Runs both engines over the same windows, step by step, and compares their logits for the counted
// tokens, of which there is one at least, row by row: some tens of rows of logits are all that is
// held. `threads` (0: one per core) compare. INVALID_ARGUMENT with both numbers when the
// vocabularies differ or a context is too short; INTERNAL when logits are not finite. The engines'
// caches are overwritten from block 0 on.
absl::StatusOr<DivergenceResult> MeasureDivergence(Engine& reference, Engine& engine,
                                                   absl::Span<const TextWindow> windows,
                                                   int threads, const EvaluationProgress& progress);

}  // namespace latentd
