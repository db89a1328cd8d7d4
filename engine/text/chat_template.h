#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"

namespace latentd {

struct ChatMessage {
  std::string role;  // what the model's template knows: "system", "user", "assistant", ...
  std::string content;
};

// A model's own Jinja chat template. Immutable, thread-safe.
class ChatTemplate {
 public:
  virtual ~ChatTemplate() = default;

  // INVALID_ARGUMENT when the source has no template (FAILED_PRECONDITION) or it does not parse.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Create(const TokenizerSource& source);

  // The prompt text of a conversation. The template's own complaints (raise_exception) come back as
  // INVALID_ARGUMENT.
  virtual absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages,
                                             bool add_generation_prompt) const = 0;
};

}  // namespace latentd
