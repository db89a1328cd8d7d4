#include "engine/evaluation/divergence.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/evaluation/counted_rows.h"
#include "engine/evaluation/row_divergence.h"

namespace latentd {
namespace {

absl::StatusOr<DivergenceResult> ResultOf(const std::vector<RowDivergence>& rows) {
  const auto count = static_cast<int64_t>(rows.size());
  const double n = static_cast<double>(count);
  double sum = 0, p_nll = 0, q_nll = 0;
  int64_t agreeing = 0;
  std::vector<double> kl;
  kl.reserve(rows.size());
  for (const RowDivergence& row : rows) {
    kl.push_back(row.kl);
    sum += row.kl;
    p_nll -= row.p_logprob;
    q_nll -= row.q_logprob;
    agreeing += row.p_top == row.q_top;
  }
  const double mean = sum / n;
  if (!std::isfinite(mean) || !std::isfinite(p_nll) || !std::isfinite(q_nll)) {
    return absl::InternalError("logits are not finite");
  }
  double squares = 0;
  for (const double value : kl) squares += (value - mean) * (value - mean);
  const int64_t p99 = (99 * count + 99) / 100 - 1;
  std::nth_element(kl.begin(), kl.begin() + p99, kl.end());
  return DivergenceResult{.kl_mean = mean,
                          .kl_standard_error = std::sqrt(squares) / n,
                          .kl_p99 = kl[p99],
                          .top1 = static_cast<double>(agreeing) / n,
                          .perplexity = std::exp(q_nll / n),
                          .reference_perplexity = std::exp(p_nll / n),
                          .tokens = count};
}

}  // namespace

absl::StatusOr<DivergenceResult> MeasureDivergence(Engine& reference, Engine& engine,
                                                   absl::Span<const TextWindow> windows,
                                                   int threads,
                                                   const EvaluationProgress& progress) {
  if (reference.info().vocab_size != engine.info().vocab_size) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the reference ", reference.info().model_name, " has ", reference.info().vocab_size,
        " tokens, ", engine.info().model_name, " has ", engine.info().vocab_size));
  }
  std::vector<RowDivergence> rows(CountedRows(windows));
  RETURN_IF_ERROR(ForCountedRows(
      {&reference, &engine}, windows, threads,
      [&](int64_t index, absl::Span<const absl::Span<const float>> logits, int32_t next) {
        rows[index] = CompareRows(logits[0], logits[1], next);
      },
      progress));
  return ResultOf(rows);
}

}  // namespace latentd
