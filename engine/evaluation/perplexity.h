#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/engine.h"
#include "engine/evaluation/windows.h"

namespace latentd {

struct PerplexityResult {
  double perplexity = 0;      // exp(mean negative log likelihood)
  double standard_error = 0;  // of the perplexity, by the delta method
  int64_t tokens = 0;         // that were counted
};

// Perplexity of the windows' counted tokens, of which there is one at least. `threads` (0: one per
// core) add up logits. INVALID_ARGUMENT with both numbers when the engine's context is too short;
// INTERNAL when the model gives no finite probability. The engine's cache is overwritten from block
// 0 on.
absl::StatusOr<PerplexityResult> MeasurePerplexity(Engine& engine,
                                                   absl::Span<const TextWindow> windows,
                                                   int threads, const EvaluationProgress& progress);

}  // namespace latentd
