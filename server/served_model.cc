#include "server/served_model.h"

#include <algorithm>

namespace latentd {

ServedModel MakeServedModel(const EngineInfo& info, const ModelConfig& config,
                            const Tokenizer* tokenizer, const ChatTemplate* chat_template) {
  ServedModel model{
      .info = info, .config = config, .tokenizer = tokenizer, .chat_template = chat_template};
  for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
    model.longest_token_bytes = std::max(model.longest_token_bytes,
                                         tokenizer->TokenBytes(id, /*skip_special=*/false).size());
  }
  return model;
}

}  // namespace latentd
