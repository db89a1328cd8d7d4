#include "server/generate_stream.h"

#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "engine/text/utf8.h"
#include "gmock/gmock.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "latentd/v1/generation.grpc.pb.h"
#include "tests/testing/server_fixture.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

std::vector<int32_t> BytesOf(const std::string& text) {
  std::vector<int32_t> ids;
  for (const char c : text) ids.push_back(static_cast<uint8_t>(c));
  return ids;
}

// What the engine generates for the request's text, the end-of-sequence token ignored.
std::vector<int32_t> ExpectedTokens(const v1::GenerateRequest& proto) {
  Request request;
  request.prompt = BytesOf(proto.text());
  request.sampling.temperature = 0;
  request.max_new_tokens = proto.max_tokens();
  return FakeEngine::Expected(request);
}

TEST(GenerateStreamTest, StreamsTokensInOrderAndTextThatEqualsTheirDecoding) {
  ServerFixture fixture;
  const v1::GenerateRequest request = TextRequest("Once upon a time", 200);
  const Streamed streamed = fixture.Generate(request);
  ASSERT_TRUE(streamed.status.ok()) << streamed.status;
  EXPECT_EQ(streamed.token_ids, ExpectedTokens(request));
  EXPECT_EQ(streamed.text, *fixture.tokenizer().Decode(streamed.token_ids, true));
  EXPECT_FALSE(streamed.messages.front().request_id().empty());
  for (size_t i = 0; i < streamed.messages.size(); ++i) {
    EXPECT_TRUE(IsUtf8(streamed.messages[i].text()));
    EXPECT_EQ(streamed.messages[i].has_finish(), i + 1 == streamed.messages.size());
  }
  const v1::Finish& finish = streamed.messages.back().finish();
  EXPECT_EQ(finish.reason(), v1::Finish::LENGTH);
  EXPECT_EQ(finish.usage().prompt_tokens(), 16);
  EXPECT_EQ(finish.usage().generated_tokens(), 200);
  EXPECT_EQ(finish.usage().full_cache_bytes(), 4 * finish.usage().cache_bytes());
  EXPECT_GT(finish.usage().cache_bytes(), 0);
  EXPECT_GE(finish.timings().total_seconds(),
            finish.timings().prefill_seconds() + finish.timings().decode_seconds());
  EXPECT_TRUE(fixture.BecomesIdle());
}

TEST(GenerateStreamTest, TextChatAndTokenIdsOfTheSamePromptGiveTheSameAnswer) {
  ServerFixture fixture;
  v1::GenerateRequest text = TextRequest("user: hi\nassistant:", 30);
  v1::GenerateRequest ids = text, chat = text;
  for (int32_t id : BytesOf(text.text())) ids.mutable_token_ids()->add_ids(id);
  v1::ChatMessage* message = chat.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("hi");
  const std::vector<int32_t> expected = fixture.Generate(text).token_ids;
  EXPECT_EQ(expected.size(), 30);
  EXPECT_EQ(fixture.Generate(ids).token_ids, expected);
  EXPECT_EQ(fixture.Generate(chat).token_ids, expected);
}

TEST(GenerateStreamTest, TheSeedIsReportedAndRepeatsTheAnswer) {
  ServerFixture fixture;
  v1::GenerateRequest request = TextRequest("seed", 20);
  request.mutable_sampling()->set_temperature(1);
  const Streamed first = fixture.Generate(request);
  EXPECT_NE(first.token_ids, fixture.Generate(request).token_ids);
  request.mutable_sampling()->set_seed(first.messages.back().finish().seed());
  EXPECT_EQ(first.token_ids, fixture.Generate(request).token_ids);
}

TEST(GenerateStreamTest, StopStringCutsTheTextAtItsFirstPlaceAndEndsTheWork) {
  ServerFixture fixture({.engine = {.on_step = SlowSteps(absl::Milliseconds(1))}});
  v1::GenerateRequest request = TextRequest("stop here", 1000);
  const std::string all = *fixture.tokenizer().Decode(ExpectedTokens(request), true);
  const size_t middle = all.find('<', 40);
  const std::string stop = all.substr(middle, 7);
  request.add_stop("never to be seen");
  request.add_stop(stop);
  for (const bool include : {false, true}) {
    request.set_include_stop(include);
    const Streamed streamed = fixture.Generate(request);
    ASSERT_TRUE(streamed.status.ok()) << streamed.status;
    EXPECT_EQ(streamed.reason(), v1::Finish::STOP_STRING);
    EXPECT_EQ(streamed.messages.back().finish().stop_string(), stop);
    EXPECT_EQ(streamed.text, all.substr(0, all.find(stop) + (include ? stop.size() : 0)));
    EXPECT_EQ(streamed.messages.back().finish().usage().generated_tokens(),
              streamed.token_ids.size());
    EXPECT_TRUE(fixture.BecomesIdle());
  }
  EXPECT_LT(fixture.loop().stats().generated_tokens, 200);
  EXPECT_EQ(fixture.client().GetStats()->finished_stop(), 2);
  EXPECT_EQ(fixture.client().GetStats()->finished_cancelled(), 0);
  EXPECT_EQ(fixture.Metric("latentd_requests_total", "reason", "stop_string"), 2);
  EXPECT_EQ(fixture.Metric("latentd_requests_cancelled_total"), 0);
}

TEST(GenerateStreamTest, TextHeldBackForAStopStringComesOutAtTheEnd) {
  ServerFixture fixture;
  v1::GenerateRequest request = TextRequest("held back", 20);
  const std::string all = *fixture.tokenizer().Decode(ExpectedTokens(request), true);
  request.add_stop(all.substr(all.size() - 3) + "no more");
  const Streamed streamed = fixture.Generate(request);
  EXPECT_EQ(streamed.reason(), v1::Finish::LENGTH);
  EXPECT_EQ(streamed.text, all);
}

// Even a prompt that is longer than the pool, where a window gives its blocks back.
TEST(GenerateStreamTest, WithoutMaxTokensTheContextIsFilled) {
  for (const int window : {0, 64}) {
    ServerFixture fixture(
        {.engine = {
             .max_context = 300, .num_blocks = window > 0 ? 2 : 64, .sliding_window = window}});
    v1::GenerateRequest request = TextRequest(std::string(200, 'x'), 1);
    request.clear_max_tokens();
    const Streamed streamed = fixture.Generate(request);
    ASSERT_TRUE(streamed.status.ok()) << streamed.status;
    EXPECT_EQ(streamed.reason(), v1::Finish::LENGTH);
    EXPECT_EQ(streamed.token_ids.size(), 100);
  }
}

TEST(GenerateStreamTest, StopTokenEndsTheTextWithoutItselfUnlessAskedFor) {
  ServerFixture fixture;
  v1::GenerateRequest request = TextRequest("stop token", 100);
  const std::vector<int32_t> tokens = ExpectedTokens(request);
  request.add_stop_token_ids(tokens[10]);
  const std::vector<int32_t> until(tokens.begin(),
                                   std::find(tokens.begin(), tokens.end(), tokens[10]) + 1);
  Streamed streamed = fixture.Generate(request);
  EXPECT_EQ(streamed.reason(), v1::Finish::STOP);
  EXPECT_EQ(streamed.token_ids, until);
  EXPECT_EQ(streamed.text, *fixture.tokenizer().Decode({until.begin(), until.end() - 1}, true));
  request.set_include_stop(true);
  EXPECT_EQ(fixture.Generate(request).text, *fixture.tokenizer().Decode(until, true));
}

TEST(GenerateStreamTest, ACancelEndsTheWorkSoon) {
  ServerFixture fixture(
      {.engine = {.num_blocks = 100, .on_step = SlowSteps(absl::Milliseconds(2))}});
  for (const absl::Duration timeout : {absl::InfiniteDuration(), absl::Seconds(60)}) {
    const Streamed streamed = fixture.Generate(TextRequest("cancel me", 4000), timeout, 3);
    EXPECT_TRUE(absl::IsCancelled(streamed.status)) << streamed.status;
    EXPECT_TRUE(fixture.BecomesIdle());
  }
  EXPECT_LT(fixture.loop().stats().generated_tokens, 200);
  EXPECT_EQ(fixture.Metric("latentd_requests_total", "code", "CANCELLED"), 2);
  EXPECT_EQ(fixture.Metric("latentd_requests_total"), 2);
}

TEST(GenerateStreamTest, TheRpcDeadlineEndsRunningAndWaitingWork) {
  ServerFixture fixture({.engine = {.num_blocks = 100, .on_step = SlowSteps(absl::Milliseconds(5))},
                         .limits = {.max_sequences = 1}});
  std::thread waiting;  // asks once the other one runs, and has long expired when that ends
  const absl::Status running = fixture.client().Generate(
      TextRequest("runs", 4000), absl::Now() + absl::Seconds(1), [&](const auto& message) {
        if (!waiting.joinable()) {
          waiting = std::thread([&] {
            EXPECT_TRUE(absl::IsDeadlineExceeded(
                fixture.Generate(TextRequest("waits", 4000), absl::Milliseconds(150)).status));
          });
        }
        return true;
      });
  EXPECT_TRUE(absl::IsDeadlineExceeded(running)) << running;
  ASSERT_TRUE(waiting.joinable());
  waiting.join();
  EXPECT_TRUE(fixture.BecomesIdle());
  // A client whose timer ran out long before the server's has left in the server's eyes: on a busy
  // machine either may be seen, by both counters the same.
  const auto ended = [&](const std::string& phase) {
    return fixture.Metric("latentd_deadline_exceeded_total", "phase", phase) +
           fixture.Metric("latentd_requests_cancelled_total", "phase", phase);
  };
  EXPECT_EQ(ended("decode"), 1);
  EXPECT_EQ(ended("queue"), 1);
  EXPECT_EQ(fixture.Metric("latentd_requests_total", "code", "DEADLINE_EXCEEDED"),
            fixture.Metric("latentd_deadline_exceeded_total"));
}

// Its client has no timer of its own, which could run out long before the server's.
TEST(GenerateStreamTest, ADeadlineThatPassesDuringAStepIsCountedAsOne) {
  ServerFixture fixture({.engine = {.on_step = SlowSteps(absl::Milliseconds(400))}});
  const auto stub = v1::Generation::NewStub(
      grpc::CreateChannel(fixture.server().address(), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.AddMetadata("grpc-timeout", "1000m");
  const auto stream = stub->Generate(&context, TextRequest("late", 4000));
  v1::GenerateResponse message;
  while (stream->Read(&message)) {
  }
  EXPECT_FALSE(stream->Finish().ok());
  EXPECT_TRUE(fixture.BecomesIdle());
  EXPECT_EQ(fixture.Metric("latentd_deadline_exceeded_total"), 1);
  EXPECT_EQ(fixture.Metric("latentd_requests_cancelled_total"), 0);
  EXPECT_EQ(fixture.Metric("latentd_requests_total", "code", "DEADLINE_EXCEEDED"), 1);
}

TEST(GenerateStreamTest, AnIdIsTakenWhileItsRequestRunsAndFreeAfterwards) {
  ServerFixture fixture({.engine = {.on_step = SlowSteps(absl::Milliseconds(1))}});
  v1::GenerateRequest request = TextRequest("same id", 2000);
  request.set_request_id("mine");
  absl::Status second;
  const absl::Status first =
      fixture.client().Generate(request, absl::InfiniteFuture(), [&](const auto& message) {
        EXPECT_EQ(message.request_id(), "mine");  // of the first message; the test leaves then
        second = fixture.Generate(request).status;
        return false;
      });
  EXPECT_TRUE(absl::IsAlreadyExists(second)) << second;
  EXPECT_THAT(std::string(second.message()), HasSubstr("\"mine\""));
  ASSERT_TRUE(fixture.BecomesIdle());
  request.set_max_tokens(3);
  EXPECT_TRUE(fixture.Generate(request).status.ok());
  EXPECT_TRUE(fixture.Generate(request).status.ok());
}

TEST(GenerateStreamTest, AFullServerRefusesAtOnceAndServesWhatItTook) {
  ServerFixture fixture({.engine = {.on_step = SlowSteps(absl::Milliseconds(1))},
                         .limits = {.max_sequences = 2, .max_queued_requests = 2}});
  std::vector<std::thread> threads;
  std::atomic<int> ok{0}, full{0};
  for (int i = 0; i < 12; ++i) {
    threads.emplace_back([&, i] {
      const absl::Status status =
          fixture.Generate(TextRequest(absl::StrCat("load ", i), 300)).status;
      ok += status.ok();
      full += absl::IsResourceExhausted(status);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(ok + full, 12);
  EXPECT_GE(ok, 4);
  EXPECT_GE(full, 1);
  EXPECT_TRUE(fixture.BecomesIdle());
  EXPECT_EQ(fixture.Metric("latentd_requests_total", "code", "RESOURCE_EXHAUSTED"), full);
}

TEST(GenerateStreamTest, ASlowReaderIsBoundedAndOthersGoOn) {
  ServerFixture fixture(
      {.engine = {.max_context = 300000, .num_blocks = 5000}, .max_outbox_bytes = 2000});
  // A client that takes 64 KiB before the outbox fills, and does not ask for more as gRPC learns
  // how fast the connection is.
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  const auto stub = v1::Generation::NewStub(grpc::CreateCustomChannel(
      fixture.server().address(), grpc::InsecureChannelCredentials(), arguments));
  grpc::ClientContext context;
  const auto stream = stub->Generate(&context, TextRequest("slow", 100000));
  v1::GenerateResponse message;
  const absl::Time begin = absl::Now();
  while (fixture.Metric("latentd_stream_dropped_total") == 0 &&
         absl::Now() < begin + absl::Seconds(20)) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  const absl::Status other = fixture.Generate(TextRequest("other", 20)).status;
  while (stream->Read(&message)) {
  }
  const grpc::Status slow = stream->Finish();
  EXPECT_EQ(slow.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << slow.error_message();
  EXPECT_THAT(slow.error_message(), HasSubstr("more than 2000 bytes"));
  EXPECT_TRUE(other.ok()) << other;
  EXPECT_EQ(fixture.Metric("latentd_stream_dropped_total", "reason", "slow_reader"), 1);
  EXPECT_LT(fixture.loop().stats().generated_tokens, 90000);
  EXPECT_TRUE(fixture.BecomesIdle());
}

TEST(GenerateStreamTest, NanLogitsEndOneRequestADeadEngineEndsAll) {
  std::atomic<bool> dies{false};
  ServerFixture fixture(
      {.engine = {.on_step =
                      [&](int64_t, const Batch&) {
                        return dies ? absl::InternalError("device lost") : absl::OkStatus();
                      },
                  .is_nan = [](const BatchSample& s) { return s.params.seed == 13; }}});
  v1::GenerateRequest request = TextRequest("nan", 10);
  request.mutable_sampling()->set_seed(13);
  Streamed streamed = fixture.Generate(request);
  EXPECT_TRUE(absl::IsInternal(streamed.status)) << streamed.status;
  EXPECT_EQ(streamed.reason(), v1::Finish::ERROR);
  EXPECT_EQ(fixture.engine_deaths(), 0);
  EXPECT_TRUE(fixture.Generate(TextRequest("fine", 10)).status.ok());

  dies = true;
  streamed = fixture.Generate(TextRequest("last", 10));
  EXPECT_TRUE(absl::IsUnavailable(streamed.status)) << streamed.status;
  EXPECT_THAT(std::string(streamed.status.message()), HasSubstr("device lost"));
  EXPECT_EQ(fixture.engine_deaths(), 1);
  EXPECT_TRUE(absl::IsUnavailable(fixture.Generate(TextRequest("too late", 10)).status));
}

TEST(GenerateStreamTest, ADrainFinishesWhatRunsAndRefusesWhatComes) {
  ServerFixture fixture({.engine = {.on_step = SlowSteps(absl::Milliseconds(1))}});
  Streamed running, late;
  std::thread drain;
  running.status = fixture.client().Generate(
      TextRequest("drain", 100), absl::InfiniteFuture(), [&](const auto& m) {
        if (!drain.joinable()) {
          fixture.server().RefuseNew();
          drain = std::thread([&] { fixture.loop().Drain(absl::Now() + absl::Seconds(20)); });
          late = fixture.Generate(TextRequest("late", 1));
        }
        running.messages.push_back(m);
        return true;
      });
  drain.join();
  EXPECT_TRUE(running.status.ok()) << running.status;
  EXPECT_EQ(running.messages.back().finish().usage().generated_tokens(), 100);
  EXPECT_TRUE(absl::IsUnavailable(late.status)) << late.status;
  EXPECT_TRUE(fixture.BecomesIdle());
}

TEST(GenerateStreamTest, WhatADrainCutsOffIsUnavailableToItsClient) {
  ServerFixture fixture({.engine = {.on_step = SlowSteps(absl::Milliseconds(2))}});
  Streamed cut;
  cut.status = fixture.client().Generate(TextRequest("cut", 3000), absl::InfiniteFuture(),
                                         [&](const auto& message) {
                                           if (cut.messages.empty())
                                             fixture.loop().Drain(absl::Now());
                                           cut.messages.push_back(message);
                                           return true;
                                         });
  EXPECT_EQ(cut.status,
            absl::UnavailableError(absl::StrCat(
                "UNAVAILABLE: the server is shutting down and ended this request after ",
                cut.messages.back().finish().usage().generated_tokens(), " tokens")));
  EXPECT_EQ(cut.reason(), v1::Finish::CANCELLED);
}

}  // namespace
}  // namespace latentd
