#pragma once

#include <string>
#include <vector>

#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"

namespace latentd {

// A tokenizer without a vocabulary file: ids below 256 are bytes, the last id is the
// end-of-sequence token, and every other id n is the text "<n>". Texts are encoded byte by byte.
class FakeTokenizer final : public Tokenizer {
 public:
  explicit FakeTokenizer(int vocab_size = 1000);

  int32_t eos() const { return static_cast<int32_t>(bytes_.size()) - 1; }

  absl::StatusOr<std::vector<int32_t>> Encode(std::string_view text, bool add_special,
                                              bool parse_special) const override;
  absl::StatusOr<std::string> Decode(const std::vector<int32_t>& ids,
                                     bool skip_special) const override;
  std::string_view TokenBytes(int32_t id, bool skip_special) const override;
  bool strips_leading_space() const override { return false; }
  int vocab_size() const override { return static_cast<int>(bytes_.size()); }

 private:
  std::vector<std::string> bytes_;
};

// Messages as "role: content\n", and "assistant:" at the end.
class FakeChatTemplate final : public ChatTemplate {
 public:
  absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages,
                                     bool add_generation_prompt) const override;
};

}  // namespace latentd
