#include "engine/benchmark/step.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "engine/batch.h"
#include "engine/benchmark/median.h"

namespace latentd {
namespace {

// `batch` sequences of one length, each in blocks of its own.
class Sequences {
 public:
  Sequences(Engine& engine, int batch, int length)
      : engine_(engine), tokens_(batch, std::vector<int32_t>(length)), blocks_(batch) {
    const int per_sequence = (length + kBlockTokens - 1) / kBlockTokens;
    for (int s = 0; s < batch; ++s) {
      for (int i = 0; i < length; ++i) {
        tokens_[s][i] = static_cast<int32_t>(RandomBits(s, i) % engine.info().vocab_size);
      }
      blocks_[s].resize(per_sequence);
      std::iota(blocks_[s].begin(), blocks_[s].end(), s * per_sequence);
    }
  }

  // One step over tokens [begin, end) of sequences [first, last), each drawing its next token.
  // Seconds it took.
  absl::StatusOr<double> Step(int first, int last, int begin, int end) {
    Batch batch{.max_blocks = static_cast<int64_t>(blocks_[0].size())};
    for (int s = first; s < last; ++s) {
      const int row = AppendRows(&batch, tokens_[s], begin, end, blocks_[s], s);
      batch.samples.push_back({.row = row, .params = {.temperature = 0}, .position = end});
    }
    const absl::Time start = absl::Now();
    RETURN_IF_ERROR(engine_.Step(batch).status());
    return absl::ToDoubleSeconds(absl::Now() - start);
  }

  // Computes tokens [0, length) of every sequence. Seconds it took.
  absl::StatusOr<double> Prefill(int length, int chunk) {
    double seconds = 0;
    for (int s = 0; s < static_cast<int>(tokens_.size()); ++s) {
      for (int begin = 0; begin < length; begin += chunk) {
        ASSIGN_OR_RETURN(const double step, Step(s, s + 1, begin, std::min(length, begin + chunk)));
        seconds += step;
      }
    }
    return seconds;
  }

 private:
  Engine& engine_;
  std::vector<std::vector<int32_t>> tokens_;
  std::vector<std::vector<int32_t>> blocks_;
};

int64_t LongestOf(const StepBenchOptions& options) {
  return std::max(int64_t{options.prompt}, int64_t{options.context} + options.steps);
}

int64_t BlocksOf(const StepBenchOptions& options) {
  return int64_t{options.batch} * ((LongestOf(options) + kBlockTokens - 1) / kBlockTokens);
}

}  // namespace

bool Fits(const EngineInfo& info, const StepBenchOptions& options) {
  return BlocksOf(options) <= info.num_blocks;
}

absl::StatusOr<StepBenchResult> BenchmarkSteps(Engine& engine, const StepBenchOptions& options,
                                               const std::function<void(double)>& progress) {
  const int64_t wanted = LongestOf(options);
  if (wanted > engine.info().max_context) {
    return absl::InvalidArgumentError(
        absl::StrCat(wanted == options.prompt ? "--prompt is " : "--context and --steps make ",
                     wanted, " tokens, the context is ", engine.info().max_context));
  }
  const int length = static_cast<int>(wanted);
  if (!Fits(engine.info(), options)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--batch ", options.batch, " of ", length, " tokens needs ", BlocksOf(options),
                     " cache blocks, --cache-bytes has ", engine.info().num_blocks));
  }
  Sequences sequences(engine, options.batch, length);
  StepBenchResult result;
  std::vector<double> prefills, totals, steps;
  for (int r = 0; r <= options.repeats && options.prompt > 0; ++r) {  // the first run only warms up
    ASSIGN_OR_RETURN(const double seconds, sequences.Prefill(options.prompt, options.chunk));
    if (r > 0) prefills.push_back(options.prompt * options.batch / seconds);
  }
  progress(0.3);
  if (!options.pretend) {
    RETURN_IF_ERROR(sequences.Prefill(options.context, options.chunk).status());
  }
  for (int r = 0; r <= options.repeats && options.steps > 0; ++r) {
    double total = 0;
    for (int i = 0; i < options.steps; ++i) {
      const int position = options.context + i;
      ASSIGN_OR_RETURN(const double seconds,
                       sequences.Step(0, options.batch, position, position + 1));
      total += seconds;
      if (r > 0) steps.push_back(seconds * 1e3);
    }
    if (r > 0) totals.push_back(total / options.steps * 1e3);
  }
  progress(1);
  if (!prefills.empty()) result.prefill_tokens_per_s = Median(prefills);
  if (!totals.empty()) {
    result.tpot_ms = Median(totals);
    result.decode_tokens_per_s = options.batch / result.tpot_ms * 1e3;
    result.step_ms_p50 = Median(steps);
  }
  return result;
}

}  // namespace latentd
