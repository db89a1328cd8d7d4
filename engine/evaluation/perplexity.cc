#include "engine/evaluation/perplexity.h"

#include <algorithm>
#include <cmath>

#include "absl/status/status.h"
#include "base/status_macros.h"

namespace latentd {

absl::StatusOr<PerplexityResult> MeasurePerplexity(Engine& engine,
                                                   absl::Span<const TextWindow> windows,
                                                   const EvaluationProgress& progress) {
  RETURN_IF_ERROR(CheckWindows(windows, engine.info()));
  double sum = 0, sum_of_squares = 0;
  PerplexityResult result;
  for (size_t w = 0; w < windows.size(); ++w) {
    const TextWindow& window = windows[w];
    const int rows = static_cast<int>(window.tokens.size()) - 1;  // row p predicts token p + 1
    for (int begin = 0; begin < rows; begin += kStepTokens) {
      const int end = std::min(rows, begin + kStepTokens);
      Batch batch = WindowStep(window, begin, end);
      for (int p = std::max(begin, window.first_counted - 1); p < end; ++p) {
        batch.scores.push_back({.row = p - begin, .token_id = window.tokens[p + 1]});
      }
      ASSIGN_OR_RETURN(const StepOutput output, engine.Step(batch));
      for (const float logprob : output.logprobs) {
        sum -= logprob;
        sum_of_squares += double{logprob} * logprob;
      }
      result.tokens += static_cast<int64_t>(output.logprobs.size());
      RETURN_IF_ERROR(progress((static_cast<double>(w) + static_cast<double>(end) / rows) /
                               static_cast<double>(windows.size())));
    }
  }
  if (!std::isfinite(sum)) {
    return absl::InternalError("the model's log probabilities are not finite");
  }
  const double mean = sum / result.tokens;
  const double variance = std::max(0.0, sum_of_squares / result.tokens - mean * mean);
  result.perplexity = std::exp(mean);
  result.standard_error = result.perplexity * std::sqrt(variance / result.tokens);
  return result;
}

}  // namespace latentd
