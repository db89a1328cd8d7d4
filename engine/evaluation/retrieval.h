#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/evaluation/question.h"
#include "engine/text/tokenizer.h"

namespace latentd {

// Sentences about nothing much: filler where no text is given.
std::string BuiltInFiller();

// A sentence with a seven-digit number for a named thing, hidden in filler text, and the question
// for it at the end ("needle in a haystack"): `prompts` of them, each about `tokens` tokens with
// the answer, never more. Prompt i hides its needle at depth i / (prompts - 1) of the filler, at a
// sentence's end. The filler repeats when it is short. A function of the seed; INVALID_ARGUMENT
// with both numbers when `tokens` leaves no room for filler.
absl::StatusOr<std::vector<Question>> MakeNeedles(const Tokenizer& tokenizer,
                                                  absl::Span<const int32_t> filler, int tokens,
                                                  int prompts, uint64_t seed);

// The prompts of a RULER file (Hsieh et al. 2024): JSON lines {input, outputs: [answer, ...]}; the
// first answer is asked for. INVALID_ARGUMENT names the file, and the line that is none or "no
// prompts".
absl::StatusOr<std::vector<Question>> ReadRuler(const std::string& path);

}  // namespace latentd
