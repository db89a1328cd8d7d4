#include "engine/evaluation/divergence.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/evaluation/row_divergence.h"
#include "kernels/cpu/thread_pool.h"

namespace latentd {
namespace {

constexpr int kLogitRows = 32;  // compared at a time: 32 x 152k x 4 B = 19 MB an engine

// Sums over the tokens seen so far.
class Tally {
 public:
  void Add(const RowDivergence& row) {
    kl_.push_back(row.kl);
    p_nll_ -= row.p_logprob;
    q_nll_ -= row.q_logprob;
    agreeing_ += row.p_top == row.q_top;
  }

  absl::StatusOr<DivergenceResult> Result() && {
    const auto count = static_cast<int64_t>(kl_.size());
    const double n = static_cast<double>(count);
    const double mean = std::accumulate(kl_.begin(), kl_.end(), 0.0) / n;
    if (!std::isfinite(mean) || !std::isfinite(p_nll_) || !std::isfinite(q_nll_)) {
      return absl::InternalError("logits are not finite");
    }
    double squares = 0;
    for (const double kl : kl_) squares += (kl - mean) * (kl - mean);
    const int64_t p99 = (99 * count + 99) / 100 - 1;
    std::nth_element(kl_.begin(), kl_.begin() + p99, kl_.end());
    return DivergenceResult{.kl_mean = mean,
                            .kl_standard_error = std::sqrt(squares) / n,
                            .kl_p99 = kl_[p99],
                            .top1 = static_cast<double>(agreeing_) / n,
                            .perplexity = std::exp(q_nll_ / n),
                            .reference_perplexity = std::exp(p_nll_ / n),
                            .tokens = count};
  }

 private:
  std::vector<double> kl_;
  double p_nll_ = 0, q_nll_ = 0;
  int64_t agreeing_ = 0;
};

class Comparison {
 public:
  Comparison(Engine& reference, Engine& engine, int threads)
      : reference_(reference), engine_(engine), pool_(threads) {}

  // `progress` counts this window's share.
  absl::Status AddWindow(const TextWindow& window, const EvaluationProgress& progress) {
    const int rows = static_cast<int>(window.tokens.size()) - 1;  // row p predicts token p + 1
    for (int begin = 0; begin < rows; begin += kStepTokens) {
      const int end = std::min(rows, begin + kStepTokens);
      const Batch batch = WindowStep(window, begin, end);
      RETURN_IF_ERROR(reference_.Step(batch).status());
      RETURN_IF_ERROR(engine_.Step(batch).status());
      for (int p = std::max(begin, window.first_counted - 1); p < end; p += kLogitRows) {
        RETURN_IF_ERROR(AddRows(window, begin, p, std::min(end, p + kLogitRows)));
      }
      RETURN_IF_ERROR(progress(static_cast<double>(end) / rows));
    }
    return absl::OkStatus();
  }

  absl::StatusOr<DivergenceResult> Result() && { return std::move(tally_).Result(); }

 private:
  // Positions [first, last) of the step whose rows begin at position `begin`.
  absl::Status AddRows(const TextWindow& window, int begin, int first, int last) {
    std::vector<int32_t> rows(last - first);
    std::iota(rows.begin(), rows.end(), first - begin);
    ASSIGN_OR_RETURN(const absl::Span<const float> p, reference_.Logits(rows));
    ASSIGN_OR_RETURN(const absl::Span<const float> q, engine_.Logits(rows));
    const size_t vocab = engine_.info().vocab_size;
    std::vector<RowDivergence> compared(rows.size());
    pool_.ParallelFor(last - first, 1, [&](int64_t row, int64_t, int) {
      compared[row] = CompareRows(p.subspan(row * vocab, vocab), q.subspan(row * vocab, vocab),
                                  window.tokens[first + row + 1]);
    });
    for (const RowDivergence& row : compared) tally_.Add(row);
    return absl::OkStatus();
  }

  Engine& reference_;
  Engine& engine_;
  ThreadPool pool_;
  Tally tally_;
};

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
  RETURN_IF_ERROR(CheckWindows(windows, reference.info()));
  RETURN_IF_ERROR(CheckWindows(windows, engine.info()));
  Comparison comparison(reference, engine, threads);
  for (size_t w = 0; w < windows.size(); ++w) {
    RETURN_IF_ERROR(comparison.AddWindow(windows[w], [&](double share) {
      return progress((static_cast<double>(w) + share) / static_cast<double>(windows.size()));
    }));
  }
  return std::move(comparison).Result();
}

}  // namespace latentd
