#include "server/server.h"

#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "google/rpc/retry_info.pb.h"
#include "grpcpp/generic/generic_stub.h"
#include "grpcpp/grpcpp.h"
#include "gtest/gtest.h"
#include "latentd/v1/generation.grpc.pb.h"
#include "tests/testing/server_fixture.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<grpc::Channel> Connect(const std::string& address, int ping_ms = 0) {
  grpc::ChannelArguments arguments;
  if (ping_ms > 0) {
    arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, ping_ms);
    arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  }
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

// A unary call of raw bytes; what the method answers, also a stream's status.
grpc::Status CallRaw(const std::string& address, const std::string& method,
                     const std::string& bytes, std::string* response = nullptr) {
  grpc::GenericStub stub(Connect(address));
  grpc::ClientContext context;
  grpc::CompletionQueue queue;
  const grpc::Slice slice(bytes);
  auto call = stub.PrepareUnaryCall(&context, method, grpc::ByteBuffer(&slice, 1), &queue);
  call->StartCall();
  grpc::ByteBuffer answer;
  grpc::Status status;
  call->Finish(&answer, &status, nullptr);
  void* tag;
  bool ok;
  queue.Next(&tag, &ok);
  std::vector<grpc::Slice> slices;
  if (response != nullptr && status.ok() && answer.Dump(&slices).ok()) {
    for (const grpc::Slice& s : slices)
      response->append(reinterpret_cast<const char*>(s.begin()), s.size());
  }
  return status;
}

// "SERVING" is status 1 of grpc.health.v1.HealthCheckResponse: field 1, varint.
std::string Health(const std::string& address) {
  std::string response;
  const grpc::Status status = CallRaw(address, "/grpc.health.v1.Health/Check", "", &response);
  if (!status.ok()) return status.error_message();
  return response == std::string("\x08\x01", 2)   ? "SERVING"
         : response == std::string("\x08\x02", 2) ? "NOT_SERVING"
                                                  : "?";
}

TEST(ServerTest, HealthFollowsReadyAndDraining) {
  ServerFixture fixture;
  EXPECT_EQ(Health(fixture.server().address()), "SERVING");
  fixture.server().RefuseNew();
  EXPECT_EQ(Health(fixture.server().address()), "NOT_SERVING");
  EXPECT_FALSE(fixture.server().ready());
}

TEST(ServerTest, ReflectionListsTheServices) {
  ServerFixture fixture;
  // ServerReflectionRequest{list_services: ""}: field 7.
  std::string response;
  const grpc::Status status = CallRaw(
      fixture.server().address(), "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
      std::string("\x3a\x00", 2), &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_THAT(response, HasSubstr("latentd.v1.Generation"));
  EXPECT_THAT(response, HasSubstr("grpc.health.v1.Health"));
}

TEST(ServerTest, ATakenPortIsAnErrorThatNamesTheFlag) {
  ServerFixture fixture;
  prometheus::Registry registry;
  SystemClock clock;
  FakeTokenizer tokenizer;
  const ServedModel model =
      MakeServedModel({.vocab_size = 1000, .max_context = 10}, {}, &tokenizer, nullptr);
  for (const std::string& listen :
       {fixture.server().address(), std::string("203.0.113.1:1"), std::string("nonsense")}) {
    const auto second =
        Server::Start({.listen = listen}, model, {}, &fixture.loop(), &registry, &clock);
    ASSERT_FALSE(second.ok()) << listen;
    EXPECT_THAT(std::string(second.status().message()),
                HasSubstr("--listen: cannot listen on " + listen));
  }
}

TEST(ServerTest, ARefusalForWantOfRoomSaysWhenToTryAgain) {
  ServerFixture fixture({.engine = {.on_step = SlowSteps(absl::Milliseconds(5))},
                         .limits = {.max_sequences = 1, .max_queued_requests = 1}});
  const auto stub = v1::Generation::NewStub(Connect(fixture.server().address()));
  v1::GenerateResponse message;
  const auto drain = [&](grpc::ClientReader<v1::GenerateResponse>& reader) {
    while (reader.Read(&message)) {
    }
    return reader.Finish();
  };
  // One runs and one waits; calls that are under way at once may arrive in any order.
  grpc::ClientContext running_context, waiting_context, refused_context;
  const auto running = stub->Generate(&running_context, TextRequest("running", 3000));
  ASSERT_TRUE(running->Read(&message));
  const auto waiting = stub->Generate(&waiting_context, TextRequest("waiting", 3000));
  ASSERT_TRUE(ComesTrue([&] {
    const ServeStats stats = fixture.loop().stats();
    return stats.running == 1 && stats.waiting == 1;
  }));

  const grpc::Status refused = drain(*stub->Generate(&refused_context, TextRequest("late", 1)));
  EXPECT_EQ(refused.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED) << refused.error_message();
  EXPECT_THAT(refused.error_message(), HasSubstr("the server takes 2"));
  google::rpc::Status details;
  google::rpc::RetryInfo retry;
  ASSERT_TRUE(details.ParseFromString(refused.error_details()));
  ASSERT_EQ(details.details_size(), 1);
  ASSERT_TRUE(details.details(0).UnpackTo(&retry));
  EXPECT_GE(retry.retry_delay().seconds(), 1);

  running_context.TryCancel();
  waiting_context.TryCancel();
  drain(*running);
  drain(*waiting);
  EXPECT_TRUE(fixture.BecomesIdle());
}

TEST(ServerTest, BrokenBytesAndBrokenUtf8GetAnAnswerThatNamesThePlace) {
  ServerFixture fixture;
  const struct {
    std::string method, bytes, says;
  } cases[] = {
      {"Generate", "\xff\xff\xff", "the request's bytes are no latentd.v1.GenerateRequest"},
      {"Generate", "\x12\x7f", "the request's bytes are no latentd.v1.GenerateRequest"},
      {"Generate",
       std::string("\x12\x04") + "ab\xff"
                                 "c",
       "a string is not UTF-8: text, byte 2"},
      {"Generate", std::string("\x12\x03") + "\xed\xa0\x80", "text, byte 0"},  // a surrogate
      {"Generate", std::string("\x12\x02") + "\xc0\xaf", "text, byte 0"},      // overlong
      {"Generate", std::string("\x12\x05") + "ok\xe2\x82",
       "the request's bytes"},  // a length past the end
      {"Generate", std::string("\x12\x04") + "ok\xe2\x82", "text, byte 2"},  // cut off
      {"Generate", std::string("\x0a\x01") + "\x80", "request_id, byte 0"},
      {"Generate", std::string("\x42\x01") + "\xfe", "stop, byte 0"},
      {"Generate", std::string("\x22\x05\x0a\x03\x12\x01") + "\xff",
       "chat.messages.content, byte 0"},
      {"Tokenize", std::string("\x0a\x01") + "\xff", "text, byte 0"},
  };
  for (const auto& c : cases) {
    const grpc::Status status =
        CallRaw(fixture.server().address(), "/latentd.v1.Generation/" + c.method, c.bytes);
    EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT) << c.says;
    EXPECT_THAT(status.error_message(), HasSubstr(c.says));
    EXPECT_TRUE(fixture.Generate(TextRequest("next", 2)).status.ok());
  }
  EXPECT_EQ(CallRaw(fixture.server().address(), "/latentd.v1.Generation/Nothing", "").error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
  EXPECT_TRUE(fixture.BecomesIdle());
}

TEST(ServerTest, AMessageOverTheLimitIsRefusedAndOneBelowItIsRead) {
  ServerFixture fixture;
  const absl::Status over = fixture.Generate(TextRequest(std::string(65 << 20, 'a'), 1)).status;
  EXPECT_TRUE(absl::IsResourceExhausted(over)) << over;
  const absl::Status below = fixture.Generate(TextRequest(std::string(63 << 20, 'a'), 1)).status;
  EXPECT_TRUE(absl::IsInvalidArgument(below)) << below;
  EXPECT_TRUE(fixture.Generate(TextRequest("next", 2)).status.ok());
}

TEST(ServerTest, StopEndsTheCallsThatAreOpenAtItsDeadline) {
  ServerFixture fixture({.engine = {.on_step = SlowSteps(absl::Milliseconds(2))}});
  bool cut = false;
  const absl::Status status = fixture.client().Generate(
      TextRequest("cut", 4000), absl::InfiniteFuture(), [&](const v1::GenerateResponse&) {
        if (!cut) fixture.server().Stop(absl::Now());
        cut = true;
        return true;
      });
  EXPECT_FALSE(status.ok());
  EXPECT_TRUE(fixture.BecomesIdle());
}

TEST(ServerTest, UnaryMethodsAnswer) {
  ServerFixture fixture({.engine = {.sliding_window = 1000, .bytes_per_sequence = 100}});
  v1::TokenizeRequest text;
  text.set_text("ab");
  EXPECT_THAT(fixture.client().Tokenize(text)->token_ids(), testing::ElementsAre('a', 'b'));
  v1::TokenizeRequest chat;
  v1::ChatMessage* message = chat.mutable_chat()->add_messages();
  message->set_role("user");
  message->set_content("x");
  EXPECT_EQ(fixture.client().Tokenize(chat)->rendered(), "user: x\nassistant:");
  EXPECT_TRUE(absl::IsInvalidArgument(fixture.client().Tokenize({}).status()));

  v1::DetokenizeRequest ids;
  ids.add_token_ids('h');
  ids.add_token_ids(300);
  ids.add_token_ids(999);
  EXPECT_EQ(fixture.client().Detokenize(ids)->text(), "h<300><999>");
  ids.set_skip_special(true);
  EXPECT_EQ(fixture.client().Detokenize(ids)->text(), "h<300>");
  ids.add_token_ids(-1);
  EXPECT_TRUE(absl::IsInvalidArgument(fixture.client().Detokenize(ids).status()));

  const v1::GetModelResponse model = *fixture.client().GetModel();
  EXPECT_EQ(model.name(), "fake");
  EXPECT_EQ(model.cache().block_tokens(), 64);
  EXPECT_EQ(model.cache().compression_ratio(), 4);
  EXPECT_EQ(model.cache().bytes_per_sequence(), 100);
  EXPECT_EQ(model.cache().sliding_window(), 1000);
  EXPECT_TRUE(model.has_chat_template());
  EXPECT_EQ(model.weight_type(), "bf16");
  EXPECT_EQ(model.decode_kernels(), "direct (2 layers)");
  EXPECT_EQ(model.max_sequences(), 64);

  ASSERT_TRUE(fixture.Generate(TextRequest("stats", 7)).status.ok());
  ASSERT_TRUE(fixture.BecomesIdle());
  const v1::GetStatsResponse stats = *fixture.client().GetStats();
  EXPECT_TRUE(stats.ready());
  EXPECT_EQ(stats.generated_tokens(), 7);
  EXPECT_EQ(stats.finished_length(), 1);
  EXPECT_EQ(stats.blocks_total(), 64);
  EXPECT_EQ(stats.cache_bytes_total(), 64 * 64 * 2 + 64 * 100);
  EXPECT_EQ(stats.seats_total(), 64);
  const auto handled = [&] {
    return fixture.Metric("grpc_server_handled_total", "grpc_method", "GetModel");
  };
  EXPECT_TRUE(ComesTrue([&] { return handled() == 1; }));  // counted after the answer is sent
  EXPECT_EQ(fixture.Metric("latentd_kv_compression_ratio"), 4);
  fixture.server().RefreshMetrics();
  EXPECT_EQ(fixture.Metric("latentd_kv_bytes", "state", "free"), 64 * 64 * 2 + 64 * 100);
  EXPECT_EQ(fixture.Metric("latentd_kv_bytes_per_token", "part", "full"), 8);
}

TEST(ServerTest, ARunningRequestIsCountedInTheCache) {
  ServerFixture fixture(
      {.engine = {.bytes_per_sequence = 100, .on_step = SlowSteps(absl::Milliseconds(10))}});
  constexpr int kUsed = 64 * 2 + 100, kTotal = 64 * 64 * 2 + 64 * 100;  // a block and a seat
  int messages = 0;
  const absl::Status status =
      fixture.client().Generate(TextRequest("run", 60), absl::InfiniteFuture(), [&](const auto&) {
        // A step sends its tokens before it counts: by the second message the first one has.
        if (++messages != 2) return true;
        const v1::GetStatsResponse stats = *fixture.client().GetStats();
        EXPECT_EQ(stats.cache_bytes_used(), kUsed);
        EXPECT_EQ(stats.cache_bytes_total(), kTotal);
        fixture.server().RefreshMetrics();
        EXPECT_EQ(fixture.Metric("latentd_kv_bytes", "state", "used"), kUsed);
        EXPECT_EQ(fixture.Metric("latentd_kv_bytes", "state", "free"), kTotal - kUsed);
        return true;
      });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_GE(messages, 2);
}

}  // namespace
}  // namespace latentd
