#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"

namespace latentd {

// Text to token ids and back, the same ids as the model's own tokenizer gives. Immutable,
// thread-safe.
class Tokenizer {
 public:
  virtual ~Tokenizer() = default;

  // INVALID_ARGUMENT when the source holds no tokenizer, or one of a kind that is not supported
  // (named).
  static absl::StatusOr<std::unique_ptr<Tokenizer>> Create(const TokenizerSource& source);

  // add_special: as the model's post-processor does (BOS, EOS). parse_special: control tokens
  // written out in the text become their ids; otherwise they are ordinary text. INVALID_ARGUMENT
  // when `text` is not UTF-8 (names the byte offset).
  virtual absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_special,
                                                      bool parse_special) const = 0;

  // The text of all ids together. Bytes that form no UTF-8 become U+FFFD. Control tokens are left
  // out if skip_special.
  virtual absl::StatusOr<std::string> Decode(const std::vector<int32_t>& ids,
                                             bool skip_special) const = 0;

  virtual int vocab_size() const = 0;
};

// Turns the tokens of one generation into text deltas: each delta is valid UTF-8, and their
// concatenation equals Decode(all tokens) with the prompt's decoding cut off. An incomplete
// character is held back until it completes or Flush.
class IncrementalDecoder {
 public:
  // `tokenizer` is borrowed. `prompt` gives the context that decides about leading spaces.
  IncrementalDecoder(const Tokenizer* tokenizer, std::vector<int32_t> prompt, bool skip_special);
  absl::StatusOr<std::string> Push(int32_t token);
  absl::StatusOr<std::string> Flush();

 private:
  const Tokenizer* const tokenizer_;
  const bool skip_special_;
  std::vector<int32_t> window_;  // the tokens that the next delta is decoded from
  size_t prefix_tokens_ = 0;     // of window_ that were already shown
};

// Finds stop strings in a stream of text: text that may be the start of one is held back.
class StopStringFilter {
 public:
  StopStringFilter(std::vector<std::string> stop_strings, bool include_stop);
  struct Result {
    std::string text;      // to show now
    bool stopped = false;  // a stop string was found: nothing may follow
    std::string matched;   // which
  };
  Result Push(std::string_view text);
  std::string Flush();  // what was held back, once no more text comes

 private:
  const std::vector<std::string> stop_strings_;
  const bool include_stop_;
  std::string held_;
};

}  // namespace latentd
