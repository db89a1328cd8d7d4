#include "engine/text/incremental_decoder.h"

#include "absl/strings/str_cat.h"
#include "engine/text/utf8.h"

namespace latentd {

IncrementalDecoder::IncrementalDecoder(const Tokenizer* tokenizer,
                                       const std::vector<int32_t>& prompt, bool skip_special)
    : tokenizer_(tokenizer),
      skip_special_(skip_special),
      at_start_(tokenizer->strips_leading_space()) {
  for (const int32_t token : prompt) {
    Append(token);
    TakeComplete();
  }
}

absl::StatusOr<std::string> IncrementalDecoder::Push(int32_t token) {
  if (token < 0)
    return absl::InvalidArgumentError(absl::StrCat("token id ", token, " is negative"));
  Append(token);
  return TakeComplete();
}

absl::StatusOr<std::string> IncrementalDecoder::Flush() {
  std::string text(bytes_.empty() ? "" : kReplacementCharacter);
  bytes_.clear();
  return text;
}

void IncrementalDecoder::Append(int32_t token) {
  std::string_view bytes = tokenizer_->TokenBytes(token, skip_special_);
  if (at_start_ && !bytes.empty()) {
    at_start_ = false;
    if (bytes.front() == ' ') bytes.remove_prefix(1);
  }
  bytes_.append(bytes);
}

std::string IncrementalDecoder::TakeComplete() {
  std::string text;
  bytes_.erase(0, AppendUtf8(bytes_, &text));
  return text;
}

}  // namespace latentd
