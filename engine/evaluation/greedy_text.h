#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/engine.h"

namespace latentd {

// What the model writes after each prompt at temperature 0: `tokens` tokens, or fewer up to and
// with the first of `stop_token_ids`. As many prompts at a time as the engine has seats and blocks
// for; the text does not depend on how many. INVALID_ARGUMENT with both numbers when a prompt and
// its text are longer than the context or the pool, or a prompt is empty.
absl::StatusOr<std::vector<std::vector<int32_t>>> GenerateGreedy(
    Engine& engine, absl::Span<const std::vector<int32_t>> prompts, int tokens,
    absl::Span<const int32_t> stop_token_ids);

// Two texts token by token.
struct TextComparison {
  int tokens = 0;            // of the longer text
  int first_difference = 0;  // where they part; `tokens` when they are equal
  double equal_share = 0;    // of tokens that are the same at the same place
};
TextComparison CompareTexts(absl::Span<const int32_t> a, absl::Span<const int32_t> b);

}  // namespace latentd
