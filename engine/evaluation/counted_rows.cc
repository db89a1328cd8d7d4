#include "engine/evaluation/counted_rows.h"

#include <algorithm>
#include <numeric>
#include <thread>
#include <vector>

#include "base/status_macros.h"
#include "kernels/cpu/thread_pool.h"

namespace latentd {
namespace {

constexpr int kLogitRows = 32;  // at a time: 32 x 152k x 4 B = 19 MB an engine

class Walk {
 public:
  Walk(absl::Span<Engine* const> engines, int threads, const CountedRowBody& body)
      : engines_(engines), body_(body), pool_(threads) {}

  // `progress` counts this window's share.
  absl::Status TakeWindow(const TextWindow& window, const EvaluationProgress& progress) {
    const int rows = static_cast<int>(window.tokens.size()) - 1;  // row p predicts token p + 1
    for (int begin = 0; begin < rows; begin += kStepTokens) {
      const int end = std::min(rows, begin + kStepTokens);
      const Batch batch = WindowStep(window, begin, end);
      for (Engine* engine : engines_) RETURN_IF_ERROR(engine->Step(batch).status());
      for (int p = std::max(begin, window.first_counted - 1); p < end; p += kLogitRows) {
        RETURN_IF_ERROR(TakeRows(window, begin, p, std::min(end, p + kLogitRows)));
      }
      RETURN_IF_ERROR(progress(static_cast<double>(end) / rows));
    }
    return absl::OkStatus();
  }

 private:
  // Positions [first, last) of the step whose rows begin at position `begin`.
  absl::Status TakeRows(const TextWindow& window, int begin, int first, int last) {
    std::vector<int32_t> rows(last - first);
    std::iota(rows.begin(), rows.end(), first - begin);
    std::vector<absl::Span<const float>> all;
    for (Engine* engine : engines_) {
      ASSIGN_OR_RETURN(all.emplace_back(), engine->Logits(rows));
    }
    const size_t vocab = engines_[0]->info().vocab_size;
    pool_.ParallelFor(last - first, 1, [&](int64_t row, int64_t, int) {
      std::vector<absl::Span<const float>> logits = all;
      for (absl::Span<const float>& of_engine : logits) {
        of_engine = of_engine.subspan(row * vocab, vocab);
      }
      body_(taken_ + row, logits, window.tokens[first + row + 1]);
    });
    taken_ += last - first;
    return absl::OkStatus();
  }

  const absl::Span<Engine* const> engines_;
  const CountedRowBody& body_;
  ThreadPool pool_;
  int64_t taken_ = 0;
};

}  // namespace

int64_t CountedRows(absl::Span<const TextWindow> windows) {
  int64_t count = 0;
  for (const TextWindow& window : windows) {
    count += std::max<int64_t>(0, std::ssize(window.tokens) - window.first_counted);
  }
  return count;
}

absl::Status ForCountedRows(absl::Span<Engine* const> engines, absl::Span<const TextWindow> windows,
                            int threads, const CountedRowBody& body,
                            const EvaluationProgress& progress) {
  for (const Engine* engine : engines) RETURN_IF_ERROR(CheckWindows(windows, engine->info()));
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  Walk walk(engines, threads > 0 ? threads : std::max(1, cores), body);
  for (size_t w = 0; w < windows.size(); ++w) {
    RETURN_IF_ERROR(walk.TakeWindow(windows[w], [&](double share) {
      return progress((static_cast<double>(w) + share) / static_cast<double>(windows.size()));
    }));
  }
  return absl::OkStatus();
}

}  // namespace latentd
