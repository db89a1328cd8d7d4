#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "server/convert.h"
#include "server/served_model.h"

namespace latentd {

struct EncodedPrompt {
  std::vector<int32_t> tokens;
  std::string rendered;  // the text of a conversation
};

// The tokens of a prompt. `add_special`: a text gets the special tokens that its tokenizer puts
// around it (a conversation brings its own). INVALID_ARGUMENT: text that surely exceeds the
// context, with both numbers; the template's own complaints.
absl::StatusOr<EncodedPrompt> EncodePrompt(Prompt prompt, bool add_special,
                                           const ServedModel& model);

}  // namespace latentd
