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
  // written out in the text become their ids; otherwise they are ordinary text. User-defined tokens
  // are always found. INVALID_ARGUMENT when `text` is not UTF-8 (names the byte offset).
  virtual absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_special,
                                                      bool parse_special) const = 0;

  // The text of all ids together. Each maximal run of bytes that form no UTF-8 becomes U+FFFD.
  // Control tokens are left out if skip_special; ids without a token (padding rows of a model) give
  // no text. INVALID_ARGUMENT for a negative id.
  virtual absl::StatusOr<std::string> Decode(const std::vector<int32_t>& ids,
                                             bool skip_special) const = 0;

  // The bytes of one token in running text: perhaps part of a character, perhaps none. Valid as
  // long as the tokenizer. Decode is these bytes in a row.
  virtual std::string_view TokenBytes(int32_t id, bool skip_special) const = 0;

  // Whether one space at the very start of a text belongs to the encoding (SentencePiece puts it
  // there) and is cut off by Decode.
  virtual bool strips_leading_space() const = 0;

  // One more than the largest id.
  virtual int vocab_size() const = 0;
};

}  // namespace latentd
