#include "engine/evaluation/perplexity.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/batch.h"

namespace latentd {
namespace {

constexpr int kStepTokens = 512;  // rows of one step

// Where each window begins.
absl::StatusOr<std::vector<int64_t>> WindowStarts(int64_t length,
                                                  const PerplexityOptions& options) {
  const int64_t fitting = length / options.window;
  const int64_t count = options.first_windows > 0 ? options.first_windows
                        : options.windows > 0     ? options.windows
                                                  : fitting;
  if (fitting < 1 || (options.first_windows > 0 && count > fitting)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the text has ", length, " tokens, ", std::max<int64_t>(count, 1), " windows of ",
        options.window, " need ", std::max<int64_t>(count, 1) * options.window));
  }
  std::vector<int64_t> starts(count);
  for (int64_t i = 0; i < count; ++i) {
    const bool spaced = options.first_windows == 0 && options.windows > 1;
    starts[i] = spaced ? (length - options.window) * i / (count - 1) : i * options.window;
  }
  return starts;
}

}  // namespace

absl::StatusOr<PerplexityResult> MeasurePerplexity(Engine& engine, const std::vector<int32_t>& ids,
                                                   const PerplexityOptions& options,
                                                   const std::function<void(double)>& progress) {
  if (options.window > engine.info().max_context) {
    return absl::InvalidArgumentError(absl::StrCat("--window is ", options.window,
                                                   ", the context is ", engine.info().max_context));
  }
  ASSIGN_OR_RETURN(const std::vector<int64_t> starts,
                   WindowStarts(static_cast<int64_t>(ids.size()), options));
  std::vector<int32_t> blocks((options.window + kBlockTokens - 1) / kBlockTokens);
  std::iota(blocks.begin(), blocks.end(), 0);
  // The row at position p predicts the token at p + 1.
  const int first_counted = options.second_half ? options.window / 2 : 0;

  double sum = 0, sum_of_squares = 0;
  PerplexityResult result{.windows = static_cast<int>(starts.size())};
  for (size_t w = 0; w < starts.size(); ++w) {
    const absl::Span<const int32_t> window =
        absl::MakeConstSpan(ids).subspan(starts[w], options.window);
    for (int begin = 0; begin < options.window; begin += kStepTokens) {
      const int end = std::min(options.window, begin + kStepTokens);
      Batch batch{.max_blocks = static_cast<int64_t>(blocks.size())};
      AppendRows(&batch, window, begin, end, blocks, 0);
      for (int p = std::max(begin, first_counted); p < std::min(end, options.window - 1); ++p) {
        batch.scores.push_back({.row = p - begin, .token_id = window[p + 1]});
      }
      ASSIGN_OR_RETURN(const StepOutput output, engine.Step(batch));
      for (const float logprob : output.logprobs) {
        sum -= logprob;
        sum_of_squares += double{logprob} * logprob;
      }
      result.tokens += static_cast<int64_t>(output.logprobs.size());
    }
    progress(static_cast<double>(w + 1) / starts.size());
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
