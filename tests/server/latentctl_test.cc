#include "server/latentctl/load.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "server/latentctl/answer.h"
#include "server/latentctl/commands.h"
#include "server/latentctl/message_json.h"
#include "server/latentctl/request_flags.h"
#include "tests/testing/server_fixture.h"

namespace latentd {
namespace {

TEST(LoadTest, AClosedLoopSeesEveryTokenAndTheCancelsItAskedFor) {
  ServerFixture fixture({.engine = {.on_step = SlowSteps(absl::Milliseconds(1))}});
  const LoadOptions options = {.requests = 40,
                               .concurrency = 8,
                               .prompt_tokens = 20,
                               .output_tokens = 30,
                               .cancel = 0.3,
                               .vocab_size = 1000};
  const LoadResult result = RunLoad(fixture.server().address(), options);
  ASSERT_EQ(result.rows.size(), 40);
  int cancelled = 0;
  for (const LoadRow& row : result.rows) {
    cancelled += row.cancelled_by_us;
    EXPECT_EQ(row.status.code(),
              row.cancelled_by_us ? absl::StatusCode::kCancelled : absl::StatusCode::kOk)
        << row.status;
    if (row.cancelled_by_us) continue;
    EXPECT_EQ(row.output_tokens, 30);
    EXPECT_EQ(row.reason, "LENGTH");
    EXPECT_GT(row.ttft, absl::ZeroDuration());
    EXPECT_GE(row.e2e, row.ttft);
  }
  EXPECT_GT(cancelled, 3);
  EXPECT_LT(cancelled, 24);
  EXPECT_TRUE(fixture.BecomesIdle());
}

TEST(LoadTest, AnOpenLoopSendsAtItsOwnTimes) {
  ServerFixture fixture;
  const LoadOptions options = {
      .requests = 50, .rate = 200, .prompt_tokens = 5, .output_tokens = 3, .vocab_size = 1000};
  const LoadResult result = RunLoad(fixture.server().address(), options);
  for (int i = 1; i < 50; ++i) EXPECT_GE(result.rows[i].due, result.rows[i - 1].due);
  // The mean of 50 exponential gaps of 5 ms.
  EXPECT_GT(result.rows.back().due, absl::Milliseconds(120));
  EXPECT_LT(result.rows.back().due, absl::Milliseconds(500));
  EXPECT_GE(result.duration, result.rows.back().due);
}

TEST(AnswerTest, AnAnswerHoldsTheTextAndTheFiguresOfItsSummary) {
  ServerFixture fixture({.engine = {.on_step = SlowSteps(absl::Milliseconds(1))}});
  v1::GenerateRequest request = TextRequest("figures", 12);
  request.set_logprobs(0);
  std::string shown;
  const Answer answer =
      Ask(&fixture.client(), request, absl::InfiniteFuture(),
          [&](absl::string_view text) { shown.append(text.data(), text.size()); });
  ASSERT_TRUE(answer.status.ok()) << answer.status;
  EXPECT_EQ(shown, answer.text);
  EXPECT_EQ(answer.token_ids.size(), 12);
  EXPECT_EQ(answer.logprobs.size(), 12);
  EXPECT_GT(answer.decode_tokens_per_s(), 0);
  EXPECT_LT(answer.decode_tokens_per_s(), 1000);
  EXPECT_EQ(Summary(answer).substr(0, 10), "12 tokens,");
}

TEST(AnswerTest, ACancelledAnswerHoldsWhatCameBefore) {
  ServerFixture fixture({.engine = {.on_step = SlowSteps(absl::Milliseconds(1))}});
  Cancellation cancellation;
  std::string shown;
  const Answer answer = Ask(
      &fixture.client(), TextRequest("unwanted", 3000), absl::InfiniteFuture(),
      [&](absl::string_view text) {
        shown.append(text.data(), text.size());
        cancellation.Cancel();
      },
      &cancellation);
  EXPECT_TRUE(absl::IsCancelled(answer.status)) << answer.status;
  EXPECT_TRUE(cancellation.cancelled());
  EXPECT_FALSE(answer.text.empty());
  EXPECT_EQ(answer.text, shown);
  EXPECT_LT(answer.token_ids.size(), 3000);
}

TEST(AnswerTest, ACancelBeforeTheQuestionCounts) {
  ServerFixture fixture;
  Cancellation cancellation;
  cancellation.Cancel();
  const Answer answer = Ask(
      &fixture.client(), TextRequest("unwanted", 5), absl::InfiniteFuture(),
      [](absl::string_view) {}, &cancellation);
  EXPECT_TRUE(absl::IsCancelled(answer.status)) << answer.status;
}

TEST(ClientTest, AStringThatIsNotUtf8IsRefusedWithoutAWordOfProtobuf) {
  ServerFixture fixture;
  v1::TokenizeRequest text;
  text.set_text("ab\xff");
  v1::GenerateRequest stop = TextRequest("good", 3);
  stop.add_stop("good");
  stop.add_stop("\xc3");
  v1::GenerateRequest chat;
  chat.mutable_chat()->add_messages()->set_content("\xe2\x82");
  const auto generate = [&](const v1::GenerateRequest& request) {
    return std::string(fixture.Generate(request).status.message());
  };
  testing::internal::CaptureStderr();
  EXPECT_EQ(fixture.client().Tokenize(text).status().message(),
            "INVALID_ARGUMENT: a string is not UTF-8: text, byte 2");
  EXPECT_EQ(generate(stop), "INVALID_ARGUMENT: a string is not UTF-8: stop, byte 0");
  EXPECT_EQ(generate(chat),
            "INVALID_ARGUMENT: a string is not UTF-8: chat.messages.content, byte 0");
  EXPECT_EQ(testing::internal::GetCapturedStderr(), "");
}

TEST(GenerateCommandTest, FlagsThatWouldHaveNoEffectAreRefused) {
  const auto says = [](std::vector<std::string> args) {
    args.push_back("--target=127.0.0.1:1");
    return std::string(GenerateCommand(args).message());
  };
  EXPECT_EQ(says({"--logprobs=5", "hi"}), "--logprobs needs --json, which prints them");
  EXPECT_THAT(says({"--system=Be brief.", "hi"}), testing::StartsWith("--system goes with --chat"));
  EXPECT_THAT(says({"--system=Be brief.", "--tokens=1"}), testing::StartsWith("--system goes"));
  EXPECT_THAT(says({"--system=Be brief.", "--chat=hi"}), testing::StartsWith("UNAVAILABLE"));
}

TEST(GenerateCommandTest, ATimeoutIsNamedWithItsFlag) {
  ServerFixture fixture({.engine = {.on_step = SlowSteps(absl::Milliseconds(20))}});
  for (const char* json : {"--json", "--no-json"}) {
    const std::vector<std::string> args = {
        "--target", fixture.server().address(), "--timeout=0.25", "--ignore-eos", json, "hi"};
    const absl::Status status = GenerateCommand(args);
    EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
    EXPECT_EQ(status.message(),
              "DEADLINE_EXCEEDED: not at its end after 0.25 s; --timeout sets how long the request "
              "may take");
  }
  EXPECT_TRUE(fixture.BecomesIdle());
}

TEST(GenerateCommandTest, JsonAfterATimeoutHoldsWhatCameBefore) {
  ServerFixture fixture({.engine = {.on_step = SlowSteps(absl::Milliseconds(20))}});
  testing::internal::CaptureStdout();
  const absl::Status status = GenerateCommand(std::vector<std::string>{
      "--target", fixture.server().address(), "--timeout=3", "--ignore-eos", "--json", "hi"});
  const auto json = nlohmann::json::parse(testing::internal::GetCapturedStdout());
  EXPECT_TRUE(absl::IsDeadlineExceeded(status)) << status;
  EXPECT_EQ(json["error"].get<std::string>(), status.message());
  EXPECT_EQ(json["reason"].get<std::string>(), "DEADLINE");
  EXPECT_GT(json["token_ids"].size(), 0);
  EXPECT_GT(json["text"].get<std::string>().size(), 0);
  EXPECT_GT(json["ttft_ms"].get<double>(), 0);
}

TEST(GenerateCommandTest, JsonAfterAnErrorWithoutATokenHasNoTimeOfTheFirst) {
  testing::internal::CaptureStdout();
  const absl::Status status = GenerateCommand(
      std::vector<std::string>{"--target=127.0.0.1:1", "--timeout=20", "--json", "hi"});
  const auto json = nlohmann::json::parse(testing::internal::GetCapturedStdout());
  EXPECT_TRUE(absl::IsUnavailable(status)) << status;
  EXPECT_EQ(json["token_ids"].size(), 0);
  EXPECT_FALSE(json.contains("ttft_ms"));
}

TEST(RequestFlagsTest, OnlyGivenFlagsEnterTheRequest) {
  RequestFlags request_flags;
  CommandLine flags({.program = "x", .summary = "", .example = "", .positional = ""});
  request_flags.AddTo(&flags);
  ASSERT_TRUE(
      flags.Parse({"--temperature=0", "--max-tokens", "7", "--stop=a", "--stop=b", "--seed=5"})
          .ok());
  v1::GenerateRequest request;
  request_flags.Apply(&request);
  EXPECT_EQ(request.ShortDebugString(),
            R"(sampling { temperature: 0 seed: 5 } max_tokens: 7 stop: "a" stop: "b")");
  EXPECT_TRUE(absl::IsInvalidArgument(flags.Parse({"--max-tokens=2147483648"})));
}

TEST(RequestFlagsTest, IdsAreNumbersBetweenCommasOrSpaces) {
  EXPECT_THAT(*ParseIds("--tokens", "1, 2,-3 4"), testing::ElementsAre(1, 2, -3, 4));
  EXPECT_EQ(ParseIds("--tokens", "1,x").status().message(), "--tokens: \"x\" is no token id");
}

TEST(MessageJsonTest, EveryFieldIsThereUnderItsOwnNameAndNumbersAreNumbers) {
  v1::Usage usage;
  usage.set_cache_bytes(int64_t{1} << 40);
  EXPECT_EQ(JsonLine(ToJson(usage)),
            R"({"prompt_tokens":0,"cached_tokens":0,"generated_tokens":0,"preemptions":0,)"
            R"("cache_bytes":1099511627776,"full_cache_bytes":0})"
            "\n");
  v1::GenerateResponse response;
  response.add_token_ids(3);
  response.mutable_finish()->set_reason(v1::Finish::LENGTH);
  const nlohmann::ordered_json json = ToJson(response);
  EXPECT_EQ(json["token_ids"].dump(), "[3]");
  EXPECT_EQ(json["finish"]["reason"], "LENGTH");
}

}  // namespace
}  // namespace latentd
