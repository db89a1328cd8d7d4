#include "engine/evaluation/perplexity.h"

#include <cmath>
#include <vector>

#include "absl/status/status.h"
#include "base/status_macros.h"
#include "engine/evaluation/counted_rows.h"
#include "engine/evaluation/row_divergence.h"

namespace latentd {

absl::StatusOr<PerplexityResult> MeasurePerplexity(Engine& engine,
                                                   absl::Span<const TextWindow> windows,
                                                   int threads,
                                                   const EvaluationProgress& progress) {
  std::vector<double> logprobs(CountedRows(windows));
  RETURN_IF_ERROR(ForCountedRows(
      {&engine}, windows, threads,
      [&](int64_t index, absl::Span<const absl::Span<const float>> logits, int32_t next) {
        logprobs[index] = RowLogprob(logits[0], next);
      },
      progress));
  const double n = static_cast<double>(logprobs.size());
  double sum = 0, squares = 0;
  for (const double logprob : logprobs) sum -= logprob;
  if (!std::isfinite(sum)) {
    return absl::InternalError("the model's log probabilities are not finite");
  }
  const double mean = sum / n;
  for (const double logprob : logprobs) squares += (logprob + mean) * (logprob + mean);
  const double perplexity = std::exp(mean);
  return PerplexityResult{.perplexity = perplexity,
                          .standard_error = perplexity * std::sqrt(squares) / n,
                          .tokens = static_cast<int64_t>(logprobs.size())};
}

}  // namespace latentd
