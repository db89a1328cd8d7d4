#include "scheduler/inbox.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>

#include "tests/testing/fake_clock.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

std::shared_ptr<Request> MakeRequest(const std::string& id, int prompt_tokens = 10) {
  auto request = std::make_shared<Request>();
  request->id = id;
  request->prompt.resize(prompt_tokens);
  return request;
}

class InboxTest : public ::testing::Test {
 protected:
  FakeClock clock_;
  Inbox inbox_{{.max_sequences = 2, .max_queued_requests = 1, .max_queued_tokens = 100}, &clock_};
};

TEST_F(InboxTest, MessagesKeepTheirOrder) {
  ASSERT_TRUE(inbox_.Add(MakeRequest("a")).ok());
  inbox_.Cancel("unknown", FinishReason::kCancelled);
  inbox_.Cancel("a", FinishReason::kStop);
  inbox_.Cancel("a", FinishReason::kCancelled);
  ASSERT_TRUE(inbox_.Add(MakeRequest("b")).ok());
  const Inbox::Contents contents = inbox_.Take(/*wait=*/true);
  ASSERT_EQ(contents.messages.size(), 3u);
  EXPECT_EQ(contents.messages[0].request->id, "a");
  EXPECT_EQ(contents.messages[1].cancel_id, "a");
  EXPECT_EQ(contents.messages[1].cancel_reason, FinishReason::kStop);
  EXPECT_EQ(contents.messages[2].request->id, "b");
  EXPECT_FALSE(contents.stop);
  EXPECT_TRUE(inbox_.Take(/*wait=*/false).messages.empty());
}

TEST_F(InboxTest, AnIdIsInUseUntilItIsSettled) {
  ASSERT_TRUE(inbox_.Add(MakeRequest("a")).ok());
  const absl::Status status = inbox_.Add(MakeRequest("a"));
  EXPECT_EQ(status.code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(status.message()), HasSubstr("id a"));
  inbox_.Take(true);
  EXPECT_EQ(inbox_.Add(MakeRequest("a")).code(), absl::StatusCode::kAlreadyExists);
  inbox_.Settle({"a"}, 0);
  EXPECT_TRUE(inbox_.Add(MakeRequest("a")).ok());
}

TEST_F(InboxTest, TheQueueIsBoundedInRequests) {
  for (const char* id : {"a", "b", "c"}) ASSERT_TRUE(inbox_.Add(MakeRequest(id)).ok());
  const absl::Status status = inbox_.Add(MakeRequest("d"));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("3 requests are running or waiting"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("the limit is 3 (2 + 1)"));
  inbox_.Take(true);
  EXPECT_FALSE(inbox_.Add(MakeRequest("d")).ok());
  inbox_.Settle({"b"}, 10);
  EXPECT_TRUE(inbox_.Add(MakeRequest("d")).ok());
}

TEST_F(InboxTest, TheQueueIsBoundedInTokens) {
  ASSERT_TRUE(inbox_.Add(MakeRequest("a", 60)).ok());
  const absl::Status status = inbox_.Add(MakeRequest("b", 41));
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(status.message()), HasSubstr("60 tokens wait"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("has 41, the limit is 100"));
  inbox_.Take(true);  // the loop has it, but has not said that it runs
  EXPECT_FALSE(inbox_.Add(MakeRequest("b", 41)).ok());
  inbox_.Settle({}, 0);
  EXPECT_TRUE(inbox_.Add(MakeRequest("b", 41)).ok());
  EXPECT_TRUE(inbox_.Add(MakeRequest("c", 59)).ok());
}

TEST_F(InboxTest, AnEmptyQueueTakesAnyPrompt) {
  EXPECT_TRUE(inbox_.Add(MakeRequest("a", 101)).ok());
  EXPECT_FALSE(inbox_.Add(MakeRequest("b", 1)).ok());
}

TEST_F(InboxTest, ADeadEngineAndADrainRefuseWithTheReason) {
  inbox_.Drain(clock_.Now());
  absl::Status status = inbox_.Add(MakeRequest("a"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("shutting down"));
  inbox_.EngineDied("the engine is dead: out of memory");
  status = inbox_.Add(MakeRequest("a"));
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_THAT(std::string(status.message()), HasSubstr("out of memory"));
}

TEST_F(InboxTest, DrainWaitsUntilTheSinksWereTold) {
  ASSERT_TRUE(inbox_.Add(MakeRequest("a")).ok());
  inbox_.Take(true);
  bool told = false;  // ordered by the inbox's lock
  std::thread drain([&] {
    EXPECT_EQ(inbox_.Drain(absl::InfiniteFuture()), 0);
    EXPECT_TRUE(told);
  });
  clock_.AwaitWaiter();
  inbox_.Settle({"a"}, 0);
  told = true;
  inbox_.Delivered();
  drain.join();
  EXPECT_FALSE(inbox_.Take(false).cancel_all);
}

TEST_F(InboxTest, DrainPastItsDeadlineCancelsTheRest) {
  ASSERT_TRUE(inbox_.Add(MakeRequest("a")).ok());
  inbox_.Take(true);
  std::thread drain([&] { EXPECT_EQ(inbox_.Drain(clock_.Now() + absl::Seconds(5)), 1); });
  clock_.AwaitWaiter();
  clock_.Advance(absl::Seconds(4));
  EXPECT_FALSE(inbox_.Take(false).cancel_all);
  clock_.Advance(absl::Seconds(1));
  const Inbox::Contents contents = inbox_.Take(true);
  EXPECT_TRUE(contents.cancel_all);
  EXPECT_FALSE(contents.stop);
  drain.join();
}

TEST_F(InboxTest, StopWakesTheLoop) {
  std::thread loop([&] { EXPECT_TRUE(inbox_.Take(true).stop); });
  inbox_.Stop();
  loop.join();
}

}  // namespace
}  // namespace latentd
