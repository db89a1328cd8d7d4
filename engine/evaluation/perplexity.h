#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/engine.h"

namespace latentd {

struct PerplexityOptions {
  int window = 2048;  // tokens of one window, each computed on its own
  int windows = 0;    // how many, evenly spaced over the text; 0: all that fit, one after the other
  int first_windows = 0;     // > 0: the first ones, one after the other, instead
  bool second_half = false;  // count only tokens from window / 2 + 1 on, as llama-perplexity does
};

struct PerplexityResult {
  double perplexity = 0;      // exp(mean negative log likelihood)
  double standard_error = 0;  // of the perplexity, by the delta method
  int64_t tokens = 0;         // that were counted
  int windows = 0;
};

// Perplexity of the text's token ids. Each window is one sequence that starts from nothing; its
// first token is given. INVALID_ARGUMENT with both numbers when the text or the context is too
// short; INTERNAL when the model gives no finite probability.
absl::StatusOr<PerplexityResult> MeasurePerplexity(Engine& engine, const std::vector<int32_t>& ids,
                                                   const PerplexityOptions& options,
                                                   const std::function<void(double)>& progress);

}  // namespace latentd
