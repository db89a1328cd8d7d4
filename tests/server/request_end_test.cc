#include "server/request_end.h"

#include <sstream>
#include <string>

#include "absl/time/clock.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spdlog/sinks/ostream_sink.h"
#include "spdlog/spdlog.h"
#include "tests/testing/server_fixture.h"

namespace latentd {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

// The log of this process while it lives, from the level debug up.
class CapturedLog {
 public:
  CapturedLog() : before_(spdlog::default_logger()) {
    auto sink = std::make_shared<spdlog::sinks::ostream_sink_mt>(text_, /*force_flush=*/true);
    auto logger = std::make_shared<spdlog::logger>("test", std::move(sink));
    logger->set_level(spdlog::level::debug);
    spdlog::set_default_logger(std::move(logger));
  }
  ~CapturedLog() { spdlog::set_default_logger(before_); }

  std::string text() const { return text_.str(); }

 private:
  const std::shared_ptr<spdlog::logger> before_;
  std::ostringstream text_;
};

v1::GenerateRequest Request(const std::string& id) {
  v1::GenerateRequest request = TextRequest("secret", 5);
  request.set_request_id(id);
  return request;
}

TEST(RequestEndTest, EachRequestIsOneLineOfTheDebugLogWithoutItsText) {
  const CapturedLog log;
  ServerFixture fixture;
  ASSERT_TRUE(fixture.Generate(Request("caf\xc3\xa9")).status.ok());
  v1::GenerateRequest hot = Request("hot");
  hot.mutable_sampling()->set_temperature(-1);
  ASSERT_FALSE(fixture.Generate(hot).status.ok());
  ASSERT_FALSE(fixture.Generate(Request("a\nb")).status.ok());
  ASSERT_TRUE(fixture.Generate(Request("")).status.ok());
  ASSERT_TRUE(fixture.BecomesIdle());
  const std::string text = log.text();
  EXPECT_THAT(text,
              ContainsRegex("request caf\xc3\xa9: 6 prompt tokens, 5 produced, length, 0.* s\n"));
  EXPECT_THAT(text, ContainsRegex("request hot: 0 prompt tokens, 0 produced, refused "
                                  ".INVALID_ARGUMENT., 0.* s\n"));
  EXPECT_THAT(text, ContainsRegex("request without a valid id: 0 prompt tokens, 0 produced, "
                                  "refused .INVALID_ARGUMENT., 0.* s\n"));
  EXPECT_THAT(text, ContainsRegex("request request-[0-9a-f]+: 6 prompt tokens"));
  EXPECT_THAT(text, Not(HasSubstr("secret")));
}

// Each refusal counts once, whoever saw that it is one.
TEST(RequestEndTest, RefusalsByReasonAreTheRefusedRequests) {
  ServerFixture fixture({.engine = {.on_step = SlowSteps(absl::Milliseconds(1))}});
  v1::GenerateRequest empty = Request("");
  empty.clear_prompt();
  v1::GenerateRequest too_long = Request("");
  too_long.set_max_tokens(4096);
  EXPECT_TRUE(absl::IsInvalidArgument(fixture.Generate(empty).status));     // the front end sees it
  EXPECT_TRUE(absl::IsInvalidArgument(fixture.Generate(too_long).status));  // the scheduler
  v1::GenerateRequest taken = Request("taken");
  taken.set_max_tokens(2000);
  absl::Status second;
  fixture.client()
      .Generate(taken, absl::InfiniteFuture(),
                [&](const v1::GenerateResponse&) {
                  if (second.ok()) second = fixture.Generate(taken).status;
                  return false;  // leaves
                })
      .IgnoreError();
  EXPECT_TRUE(absl::IsAlreadyExists(second)) << second;
  fixture.server().RefuseNew();
  EXPECT_TRUE(absl::IsUnavailable(fixture.Generate(Request("late")).status));

  const auto rejected = [&](const char* reason) {
    return fixture.Metric("latentd_requests_rejected_total", "reason", reason);
  };
  const auto all = [&] { return fixture.Metric("latentd_requests_rejected_total"); };
  const absl::Time deadline = absl::Now() + absl::Seconds(5);  // counted after the answer is sent
  while (all() < 4 && absl::Now() < deadline) absl::SleepFor(absl::Milliseconds(2));
  EXPECT_EQ(rejected("invalid"), 2);
  EXPECT_EQ(rejected("duplicate_id"), 1);
  EXPECT_EQ(rejected("draining"), 1);
  EXPECT_EQ(all(), 4);
  EXPECT_EQ(fixture.Metric("latentd_requests_total", "reason", "refused"), 4);
}

}  // namespace
}  // namespace latentd
