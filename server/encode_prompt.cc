#include "server/encode_prompt.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace latentd {
namespace {

// Normalisation shortens a text by at most that factor (decomposed Hangul: 9 bytes become 3).
constexpr size_t kNormalization = 4;

absl::Status CheckLength(const std::string& text, const ServedModel& model) {
  const size_t limit =
      static_cast<size_t>(model.info.max_context) * model.longest_token_bytes * kNormalization;
  if (text.size() <= limit) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the prompt has ", text.size(), " bytes, but the context of ",
                   model.info.max_context, " tokens holds at most ", limit));
}

}  // namespace

absl::StatusOr<EncodedPrompt> EncodePrompt(Prompt prompt, bool add_special,
                                           const ServedModel& model) {
  EncodedPrompt encoded;
  if (auto* tokens = std::get_if<std::vector<int32_t>>(&prompt)) {
    encoded.tokens = std::move(*tokens);
    return encoded;
  }
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    RETURN_IF_ERROR(CheckLength(*text, model));
    ASSIGN_OR_RETURN(encoded.tokens,
                     model.tokenizer->Encode(*text, add_special, /*parse_special=*/true));
    return encoded;
  }
  const auto& messages = std::get<std::vector<ChatMessage>>(prompt);
  for (const ChatMessage& message : messages) RETURN_IF_ERROR(CheckLength(message.content, model));
  ASSIGN_OR_RETURN(encoded.rendered,
                   model.chat_template->Render(messages, /*add_generation_prompt=*/true));
  RETURN_IF_ERROR(CheckLength(encoded.rendered, model));
  ASSIGN_OR_RETURN(encoded.tokens, model.tokenizer->Encode(encoded.rendered, /*add_special=*/false,
                                                           /*parse_special=*/true));
  return encoded;
}

}  // namespace latentd
