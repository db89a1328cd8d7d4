#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"

namespace latentd {

// The tokenizer.json (Hugging Face's format) that gives the same ids as this vocabulary. Control
// and unknown tokens become its special tokens, user-defined ones its other added tokens.
// INVALID_ARGUMENT names what is unknown or inconsistent: the model kind, the pre-tokenizer, sizes
// that disagree, a token that is there twice or is no UTF-8.
absl::StatusOr<std::string> TokenizerJsonOf(const GgufVocabulary& vocabulary);

}  // namespace latentd
