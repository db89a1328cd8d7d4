// Every bad request gets its own clear answer, and the next good one is served.

#include <cmath>
#include <functional>
#include <limits>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/server_fixture.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInf = std::numeric_limits<float>::infinity();

struct Case {
  const char* name;
  std::function<void(v1::GenerateRequest*)> spoil;  // a good request becomes a bad one
  std::vector<std::string> says;
};

void AddMessage(v1::GenerateRequest* r, const std::string& role, const std::string& content) {
  v1::ChatMessage* message = r->mutable_chat()->add_messages();
  message->set_role(role);
  message->set_content(content);
}

std::vector<Case> Cases() {
  using R = v1::GenerateRequest;
  const auto temperature = [](float v) {
    return [v](R* r) { r->mutable_sampling()->set_temperature(v); };
  };
  const auto top_p = [](float v) { return [v](R* r) { r->mutable_sampling()->set_top_p(v); }; };
  const auto min_p = [](float v) { return [v](R* r) { r->mutable_sampling()->set_min_p(v); }; };
  const auto repetition = [](float v) {
    return [v](R* r) { r->mutable_sampling()->set_repetition_penalty(v); };
  };
  const auto presence = [](float v) {
    return [v](R* r) { r->mutable_sampling()->set_presence_penalty(v); };
  };
  const auto frequency = [](float v) {
    return [v](R* r) { r->mutable_sampling()->set_frequency_penalty(v); };
  };
  const auto id = [](int64_t v) {
    return [v](R* r) {
      r->mutable_token_ids()->add_ids(5);
      r->mutable_token_ids()->add_ids(v);
    };
  };
  const auto stop_id = [](int64_t v) { return [v](R* r) { r->add_stop_token_ids(v); }; };
  return {
      {"no prompt", [](R* r) { r->clear_prompt(); }, {"prompt is missing"}},
      {"empty text", [](R* r) { r->set_text(""); }, {"text is empty"}},
      {"no ids", [](R* r) { r->mutable_token_ids(); }, {"token_ids.ids has 0 ids"}},
      {"no messages", [](R* r) { r->mutable_chat(); }, {"chat.messages has 0 messages"}},
      {"id -1", id(-1), {"token_ids.ids[1] is -1", "[0, 999]"}},
      {"id vocab", id(1000), {"token_ids.ids[1] is 1000", "[0, 999]"}},
      {"id 2^31", id(int64_t{1} << 31), {"2147483648", "[0, 999]"}},
      {"id -2^63", id(std::numeric_limits<int64_t>::min()), {"-9223372036854775808"}},
      {"unknown role",
       [](R* r) { AddMessage(r, "wizard", "hi"); },
       {"chat.messages[0].role", "\"wizard\"", "user"}},
      {"no role", [](R* r) { AddMessage(r, "", "hi"); }, {"chat.messages[0].role is \"\""}},
      {"a long role",
       [](R* r) { AddMessage(r, std::string(100000, 'x'), "hi"); },
       {"chat.messages[0].role"}},
      {"the template refuses", [](R* r) { AddMessage(r, "user", "raise"); }, {"does not like"}},
      {"text of 5 MB",
       [](R* r) { r->set_text(std::string(5 << 20, 'a')); },
       {"5242880 bytes", "4096 tokens"}},
      {"message of 5 MB",
       [](R* r) { AddMessage(r, "user", std::string(5 << 20, 'a')); },
       {"5242880 bytes"}},
      {"5 MB of messages",
       [](R* r) {
         for (int i = 0; i < 100; ++i) AddMessage(r, "user", std::string(52000, 'a'));
       },
       {"bytes", "4096 tokens"}},
      {"text over the context",
       [](R* r) { r->set_text(std::string(5000, 'a')); },
       {"5000", "4096"}},
      {"prompt and output over the context", [](R* r) { r->set_max_tokens(4096); }, {"4096"}},
      {"a million ids",
       [](R* r) {
         for (int i = 0; i < 1000000; ++i) r->mutable_token_ids()->add_ids(7);
       },
       {"1000000", "4096"}},
      {"temperature NaN", temperature(kNan), {"temperature", "nan"}},
      {"temperature negative", temperature(-1), {"temperature", "-1"}},
      {"temperature infinite", temperature(kInf), {"temperature", "inf"}},
      {"temperature 1000", temperature(1000), {"temperature is 1000", "[0, 100]"}},
      {"top_p 0", top_p(0), {"top_p", "0"}},
      {"top_p 2", top_p(2), {"top_p", "2"}},
      {"top_p NaN", top_p(kNan), {"top_p", "nan"}},
      {"top_p negative", top_p(-0.5f), {"top_p", "-0.5"}},
      {"top_k negative", [](R* r) { r->mutable_sampling()->set_top_k(-1); }, {"top_k", "-1"}},
      {"min_p 1.5", min_p(1.5f), {"min_p", "1.5"}},
      {"min_p NaN", min_p(kNan), {"min_p", "nan"}},
      {"repetition_penalty 0", repetition(0), {"repetition_penalty", "0"}},
      {"repetition_penalty 1000", repetition(1000), {"repetition_penalty", "1000"}},
      {"repetition_penalty NaN", repetition(kNan), {"repetition_penalty", "nan"}},
      {"presence_penalty 101", presence(101), {"presence_penalty", "101"}},
      {"presence_penalty -inf", presence(-kInf), {"presence_penalty", "-inf"}},
      {"frequency_penalty NaN", frequency(kNan), {"frequency_penalty", "nan"}},
      {"frequency_penalty -200", frequency(-200), {"frequency_penalty", "-200"}},
      {"logprobs -1", [](R* r) { r->set_logprobs(-1); }, {"logprobs", "-1", "20"}},
      {"logprobs 21", [](R* r) { r->set_logprobs(21); }, {"logprobs", "21", "20"}},
      {"max_tokens 0", [](R* r) { r->set_max_tokens(0); }, {"max_tokens is 0"}},
      {"max_tokens -5", [](R* r) { r->set_max_tokens(-5); }, {"max_tokens is -5"}},
      {"max_tokens 2^31 - 1", [](R* r) { r->set_max_tokens(2147483647); }, {"2147483647", "4096"}},
      {"min_tokens -1", [](R* r) { r->set_min_tokens(-1); }, {"min_tokens is -1"}},
      {"min_tokens over max_tokens",
       [](R* r) { r->set_min_tokens(6); },
       {"min_tokens is 6", "max_tokens, which is 5"}},
      {"min_tokens 2^31 - 1 alone",
       [](R* r) { r->clear_max_tokens(), r->set_min_tokens(2147483647); },
       {"4096"}},
      {"an empty stop string", [](R* r) { r->add_stop(""); }, {"stop[0] has 0 bytes"}},
      {"a long stop string",
       [](R* r) { r->add_stop(std::string(1025, 's')); },
       {"stop[0] has 1025 bytes", "1024"}},
      {"65 stop strings",
       [](R* r) {
         for (int i = 0; i < 65; ++i) r->add_stop("x");
       },
       {"stop has 65 strings", "64"}},
      {"10^6 stop strings",
       [](R* r) {
         for (int i = 0; i < 1000000; ++i) r->add_stop("x");
       },
       {"stop has 1000000 strings", "64"}},
      {"stop id -1", stop_id(-1), {"stop_token_ids[0] is -1", "[0, 999]"}},
      {"stop id vocab", stop_id(1000), {"stop_token_ids[0] is 1000", "[0, 999]"}},
      {"1025 stop ids",
       [](R* r) {
         for (int i = 0; i < 1025; ++i) r->add_stop_token_ids(1);
       },
       {"stop_token_ids has 1025 ids", "1024"}},
      {"a long id",
       [](R* r) { r->set_request_id(std::string(129, 'i')); },
       {"request_id has 129 bytes", "128"}},
      {"an id of two lines",
       [](R* r) { r->set_request_id("a\nb"); },
       {"request_id has a control character, 0x0a, at byte 1"}},
      {"an id with DEL", [](R* r) { r->set_request_id("\x7f"); }, {"0x7f, at byte 0"}},
      {"an id with a C1 control character",
       [](R* r) { r->set_request_id("\xc3\xa9\xc2\x9b"); },
       {"0x9b, at byte 2"}},
  };
}

TEST(BadInputTest, EveryCaseIsRefusedClearlyAndTheNextRequestIsServed) {
  ServerFixture fixture;
  const v1::GenerateRequest good = TextRequest("a good prompt", 5);
  const std::vector<int32_t> answer = fixture.Generate(good).token_ids;
  ASSERT_EQ(answer.size(), 5);
  int number = 0;
  for (const Case& c : Cases()) {
    SCOPED_TRACE(c.name);
    v1::GenerateRequest bad = good;
    c.spoil(&bad);
    const Streamed refused = fixture.Generate(bad, absl::Seconds(20));
    EXPECT_TRUE(absl::IsInvalidArgument(refused.status)) << refused.status;
    for (const std::string& part : c.says)
      EXPECT_THAT(std::string(refused.status.message()), HasSubstr(part));
    EXPECT_LT(refused.status.message().size(), 300);
    EXPECT_TRUE(refused.messages.empty());
    EXPECT_EQ(fixture.Generate(good).token_ids, answer);
    ++number;
  }
  EXPECT_GE(number, 40);
  EXPECT_TRUE(fixture.BecomesIdle());
  EXPECT_EQ(fixture.Metric("latentd_requests_total", "code", "INVALID_ARGUMENT"), number);
  EXPECT_EQ(fixture.Metric("latentd_requests_rejected_total", "reason", "invalid"), number);
  EXPECT_EQ(fixture.Metric("latentd_requests_total", "code", "OK"), number + 1);
}

}  // namespace
}  // namespace latentd
