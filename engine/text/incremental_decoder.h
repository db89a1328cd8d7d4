#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/text/tokenizer.h"

namespace latentd {

// Turns the tokens of one generation into text deltas: each delta is valid UTF-8, and their
// concatenation (with Flush) equals Decode(prompt and tokens) without the complete characters that
// the prompt alone decodes to. An incomplete character is held back until it completes or Flush.
// Constant work per byte. Owned by one thread.
class IncrementalDecoder {
 public:
  // `tokenizer` is borrowed. `prompt` gives the context that decides about a leading space.
  IncrementalDecoder(const Tokenizer* tokenizer, const std::vector<int32_t>& prompt,
                     bool skip_special);

  // INVALID_ARGUMENT for a negative id.
  absl::StatusOr<std::string> Push(int32_t token);

  // What was held back, as U+FFFD. Nothing may be pushed afterwards.
  absl::StatusOr<std::string> Flush();

 private:
  void Append(int32_t token);
  std::string TakeComplete();

  const Tokenizer* const tokenizer_;
  const bool skip_special_;
  bool at_start_;      // no byte of text so far, so a leading space is still to be cut off
  std::string bytes_;  // not yet shown: after TakeComplete, the start of one character
};

}  // namespace latentd
