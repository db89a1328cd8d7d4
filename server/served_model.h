#pragma once

#include <cstddef>

#include "engine/engine.h"
#include "engine/model/model_config.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"

namespace latentd {

// The one model that the server holds, as its text and its API see it. Constant; the pointers are
// borrowed.
struct ServedModel {
  EngineInfo info;
  ModelConfig config;
  const Tokenizer* tokenizer = nullptr;
  const ChatTemplate* chat_template = nullptr;  // null: the model has none

  // Of the longest token: a text of more than max_context times that many bytes cannot fit, and is
  // not tokenised.
  size_t longest_token_bytes = 0;
};

ServedModel MakeServedModel(const EngineInfo& info, const ModelConfig& config,
                            const Tokenizer* tokenizer, const ChatTemplate* chat_template);

}  // namespace latentd
