#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
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

  // FAILED_PRECONDITION when the source has no template, INVALID_ARGUMENT when it does not parse.
  // `now` is what the template's strftime_now sees; any thread may call it.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Create(
      const TokenizerSource& source, std::function<absl::Time()> now = absl::Now);

  // The prompt text of a conversation. The template's own complaints (raise_exception), and text
  // that is not UTF-8, come back as INVALID_ARGUMENT; a template that runs or writes without end as
  // RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages,
                                             bool add_generation_prompt) const = 0;
};

}  // namespace latentd
