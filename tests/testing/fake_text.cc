#include "tests/testing/fake_text.h"

#include "absl/strings/str_cat.h"
#include "engine/text/utf8.h"

namespace latentd {

FakeTokenizer::FakeTokenizer(int vocab_size) {
  for (int id = 0; id < vocab_size; ++id) {
    bytes_.push_back(id < 256 ? std::string(1, static_cast<char>(id)) : absl::StrCat("<", id, ">"));
  }
}

absl::StatusOr<std::vector<int32_t>> FakeTokenizer::Encode(std::string_view text, bool,
                                                           bool) const {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

absl::StatusOr<std::string> FakeTokenizer::Decode(const std::vector<int32_t>& ids,
                                                  bool skip_special) const {
  std::string bytes, text;
  for (const int32_t id : ids) bytes += TokenBytes(id, skip_special);
  if (AppendUtf8(bytes, &text) < bytes.size()) text += kReplacementCharacter;
  return text;
}

std::string_view FakeTokenizer::TokenBytes(int32_t id, bool skip_special) const {
  if (skip_special && id == eos()) return {};
  return bytes_[id];
}

absl::StatusOr<std::string> FakeChatTemplate::Render(const std::vector<ChatMessage>& messages,
                                                     bool add_generation_prompt) const {
  std::string text;
  for (const ChatMessage& message : messages) {
    if (message.content == "raise")
      return absl::InvalidArgumentError("the template does not like this message");
    absl::StrAppend(&text, message.role, ": ", message.content, "\n");
  }
  if (add_generation_prompt) text += "assistant:";
  return text;
}

}  // namespace latentd
