#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "engine/batch.h"
#include "engine/engine.h"

namespace latentd {

// A piece of a text that is measured as one sequence, starting from nothing. Its tokens from
// first_counted (>= 1) on are predicted and counted; those before are given.
struct TextWindow {
  absl::Span<const int32_t> tokens;
  int first_counted = 1;
};

struct WindowOptions {
  int window = 2048;      // tokens of one window
  int windows = 0;        // how many, evenly spaced over the text, apart; 0: all that fit
  int first_windows = 0;  // > 0: the first ones, one after the other, instead
  // > 0: a window begins this many tokens after the one before and counts only its last `stride`
  // tokens, so that each token of the text is counted once, with at least window - stride before it
  int stride = 0;
  bool second_half = false;  // count only tokens from window / 2 + 1 on, as llama-perplexity does
};

// "1 window of 256", "30 windows of 256".
inline std::string WindowsOf(int64_t count, int tokens) {
  return absl::StrCat(count, count == 1 ? " window of " : " windows of ", tokens);
}

// INVALID_ARGUMENT names the flags that contradict each other.
absl::Status CheckWindowOptions(const WindowOptions& options);

// The windows of a text; they borrow `ids`. INVALID_ARGUMENT as above, or it says how many tokens
// the text has and how many are needed.
absl::StatusOr<std::vector<TextWindow>> SplitIntoWindows(absl::Span<const int32_t> ids,
                                                         const WindowOptions& options);

// A sequence's tokens go through an engine in steps of at most this many rows.
inline constexpr int kStepTokens = 512;

// The rows [begin, end) of a window that is alone in its engine: blocks from 0 on, seat 0.
Batch WindowStep(const TextWindow& window, int begin, int end);

// INVALID_ARGUMENT with both numbers when a window is longer than the engine's context, or a token
// is outside of its vocabulary.
absl::Status CheckWindows(absl::Span<const TextWindow> windows, const EngineInfo& info);

// Is told the share done, in [0, 1], on the thread that measures. An error ends the work and comes
// back from it.
using EvaluationProgress = std::function<absl::Status(double)>;

}  // namespace latentd
