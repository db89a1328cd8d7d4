#include "engine/text/chat_template.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "engine/text/rust_text.h"
#include "engine/text/utf8.h"

namespace latentd {
namespace {

// Members stay in order: a template may print a message as JSON.
using json = nlohmann::ordered_json;

void FormatTime(void* context, LatentdBytes format, LatentdSink result) {
  const absl::Time time = (*static_cast<const std::function<absl::Time()>*>(context))();
  const std::string text =
      absl::FormatTime(std::string(StringView(format)), time, absl::LocalTimeZone());
  result.write(result.context, RustBytes(text));
}

class RustChatTemplate final : public ChatTemplate {
 public:
  RustChatTemplate(json special_tokens, std::function<absl::Time()> now)
      : special_tokens_(std::move(special_tokens)), now_(std::move(now)) {}
  ~RustChatTemplate() override {
    if (handle_ != nullptr) latentd_chat_template_free(handle_);
  }
  RustChatTemplate(const RustChatTemplate&) = delete;
  RustChatTemplate& operator=(const RustChatTemplate&) = delete;

  absl::Status Parse(const std::string& source) {
    std::string message;
    const int32_t code = latentd_chat_template_create(
        RustBytes(source), {.context = &now_, .format = FormatTime}, &handle_, RustSink(&message));
    return RustStatus(code, message);
  }

  absl::StatusOr<std::string> Render(const std::vector<ChatMessage>& messages,
                                     bool add_generation_prompt) const override {
    json variables = special_tokens_;
    variables["add_generation_prompt"] = add_generation_prompt;
    variables["tools"] = nullptr;
    json& list = variables["messages"] = json::array();
    for (const ChatMessage& message : messages) {
      if (!IsUtf8(message.role) || !IsUtf8(message.content)) {
        return absl::InvalidArgumentError(
            absl::StrCat("message ", list.size(), " of ", messages.size(), " is not UTF-8"));
      }
      list.push_back({{"role", message.role}, {"content", message.content}});
    }
    const std::string text = variables.dump();
    std::string result;
    const int32_t code = latentd_chat_template_render(handle_, RustBytes(text), RustSink(&result));
    RETURN_IF_ERROR(RustStatus(code, result));
    return result;
  }

 private:
  const json special_tokens_;
  std::function<absl::Time()> now_;
  LatentdChatTemplate* handle_ = nullptr;  // owned
};

// A token of tokenizer_config.json is its text, or an object with it.
void AddConfigTokens(const json& config, json* variables) {
  for (const char* name : {"bos_token", "eos_token", "unk_token", "pad_token"}) {
    const auto entry = config.find(name);
    if (entry == config.end()) continue;
    const json& text = entry->is_object() ? entry->value("content", json()) : *entry;
    if (text.is_string()) (*variables)[name] = text;
  }
}

void AddGgufTokens(const GgufVocabulary& vocabulary, json* variables) {
  auto add = [&](const char* name, int32_t id) {
    if (id < 0 || static_cast<size_t>(id) >= vocabulary.tokens.size()) return;
    if (IsUtf8(vocabulary.tokens[id])) (*variables)[name] = vocabulary.tokens[id];
  };
  add("bos_token", vocabulary.bos_token_id);
  add("eos_token", vocabulary.eos_token_id);
  add("unk_token", vocabulary.unknown_token_id);
}

}  // namespace

absl::StatusOr<std::unique_ptr<ChatTemplate>> ChatTemplate::Create(
    const TokenizerSource& source, std::function<absl::Time()> now) {
  if (source.chat_template.empty()) {
    return absl::FailedPreconditionError("the model has no chat template");
  }
  json config = json::object();
  if (!source.tokenizer_config_json.empty()) {
    config = json::parse(source.tokenizer_config_json, nullptr, /*allow_exceptions=*/false);
    if (!config.is_object()) {
      return absl::InvalidArgumentError("tokenizer_config.json is no JSON object");
    }
  }

  json special_tokens = json::object();
  if (source.gguf) AddGgufTokens(*source.gguf, &special_tokens);
  AddConfigTokens(config, &special_tokens);
  auto chat_template =
      std::make_unique<RustChatTemplate>(std::move(special_tokens), std::move(now));
  RETURN_IF_ERROR(chat_template->Parse(source.chat_template));
  return chat_template;
}

}  // namespace latentd
