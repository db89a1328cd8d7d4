#include "scheduler/serve_loop.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include <atomic>
#include <memory>
#include <thread>

#include "base/random.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/fake_engine.h"
#include "tests/testing/recording_sink.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

// Lets a test hold the engine inside a step.
class Gate {
 public:
  // Holds every step from here on; returns once one is held.
  void Close() {
    MutexLock lock(&mu_);
    open_ = false;
  }
  void AwaitHeld() {
    MutexLock lock(&mu_);
    while (!held_) changed_.Wait(&mu_);
  }
  void Open() {
    MutexLock lock(&mu_);
    open_ = true;
    changed_.NotifyAll();
  }
  void Pass() {
    MutexLock lock(&mu_);
    held_ = true;
    changed_.NotifyAll();
    while (!open_) changed_.Wait(&mu_);
    held_ = false;
  }

 private:
  Mutex mu_;
  CondVar changed_;
  bool open_ ABSL_GUARDED_BY(mu_) = true;
  bool held_ ABSL_GUARDED_BY(mu_) = false;
};

class ServeLoopTest : public ::testing::Test {
 protected:
  void Start(const SchedulerConfig& config = {}, FakeEngine::Options options = {}) {
    if (!options.on_step) {
      options.on_step = [this](int64_t, const Batch&) {
        gate_.Pass();
        return absl::OkStatus();
      };
    }
    engine_ = std::make_unique<FakeEngine>(std::move(options));
    auto loop = ServeLoop::Start(engine_.get(), config, &metrics_, &clock_);
    ASSERT_TRUE(loop.ok()) << loop.status();
    loop_ = *std::move(loop);
  }

  std::shared_ptr<Request> MakeRequest(const std::string& id, int prompt_tokens = 10,
                                       int max_new_tokens = 5) {
    auto request = std::make_shared<Request>();
    request->id = id;
    for (int i = 0; i < prompt_tokens; ++i) {
      request->prompt.push_back(static_cast<int32_t>(RandomBits(id.size() + id.back(), i) % 1000));
    }
    request->max_new_tokens = max_new_tokens;
    request->arrival = clock_.Now();
    request->sink = std::make_shared<RecordingSink>();
    return request;
  }
  static RecordingSink& SinkOf(const std::shared_ptr<Request>& request) {
    return static_cast<RecordingSink&>(*request->sink);
  }

  void ExpectIdle() {
    const ServeStats stats = loop_->stats();
    EXPECT_EQ(stats.running, 0);
    EXPECT_EQ(stats.waiting, 0);
    EXPECT_EQ(stats.blocks_used, 0);
  }

  FakeClock clock_;
  prometheus::Registry registry_;
  SchedulerMetrics metrics_{registry_};
  Gate gate_;
  std::unique_ptr<FakeEngine> engine_;
  std::unique_ptr<ServeLoop> loop_;
};

TEST_F(ServeLoopTest, StartRefusesBadLimits) {
  FakeEngine engine({});
  EXPECT_EQ(ServeLoop::Start(&engine, {.max_batch_tokens = 0}, &metrics_, &clock_).status().code(),
            absl::StatusCode::kInvalidArgument);
  FakeEngine blockless({.num_blocks = 0});
  EXPECT_EQ(ServeLoop::Start(&blockless, {}, &metrics_, &clock_).status().code(),
            absl::StatusCode::kInvalidArgument);
}

TEST_F(ServeLoopTest, ServesOneRequest) {
  Start();
  auto request = MakeRequest("a");
  ASSERT_TRUE(loop_->Add(request).ok());
  EXPECT_EQ(SinkOf(request).Wait().reason, FinishReason::kLength);
  EXPECT_EQ(SinkOf(request).tokens(), FakeEngine::Expected(*request));
  ExpectIdle();
  EXPECT_EQ(loop_->stats().steps, 5);
  EXPECT_EQ(loop_->stats().generated_tokens, 5);
  EXPECT_EQ(loop_->stats().requests_finished[static_cast<int>(FinishReason::kLength)], 1);
}

// Whoever hears of the end finds it in the statistics already, and may use the id again.
TEST_F(ServeLoopTest, TheEndIsVisibleBeforeTheSinkHearsOfIt) {
  Start();
  auto request = MakeRequest("a"), again = MakeRequest("a");
  SinkOf(request).on_finish = [&](const FinishInfo&) {
    ExpectIdle();
    EXPECT_EQ(loop_->stats().requests_finished[static_cast<int>(FinishReason::kLength)], 1);
    EXPECT_TRUE(loop_->Add(again).ok());
  };
  ASSERT_TRUE(loop_->Add(request).ok());
  SinkOf(request).Wait();
  EXPECT_EQ(SinkOf(again).Wait().reason, FinishReason::kLength);
}

TEST_F(ServeLoopTest, AddAnswersWhileAStepRuns) {
  Start({.max_sequences = 1, .max_queued_requests = 1});
  gate_.Close();
  auto running = MakeRequest("running"), queued = MakeRequest("queued");
  ASSERT_TRUE(loop_->Add(running).ok());
  gate_.AwaitHeld();
  EXPECT_EQ(loop_->stats().waiting, 1);  // as of before the step
  ASSERT_TRUE(loop_->Add(queued).ok());
  EXPECT_EQ(loop_->Add(MakeRequest("third")).code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(loop_->Add(MakeRequest("queued")).code(), absl::StatusCode::kAlreadyExists);
  const absl::Status too_long = loop_->Add(MakeRequest("long", 4000, 97));
  EXPECT_EQ(too_long.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(too_long.message()), HasSubstr("4097"));
  EXPECT_THAT(std::string(too_long.message()), HasSubstr("4096"));
  gate_.Open();
  for (const auto& request : {running, queued}) {
    EXPECT_EQ(SinkOf(request).Wait().reason, FinishReason::kLength);
    EXPECT_EQ(SinkOf(request).tokens(), FakeEngine::Expected(*request));
  }
  EXPECT_TRUE(loop_->Add(MakeRequest("third")).ok());
}

TEST_F(ServeLoopTest, WhatOutgrowsThePoolIsRefusedWithBothNumbers) {
  Start({}, {.num_blocks = 4});
  const absl::Status status = loop_->Add(MakeRequest("a", 200, 58));
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("5 cache blocks"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("pool has 4"));
  auto fits = MakeRequest("b", 200, 57);
  ASSERT_TRUE(loop_->Add(fits).ok());
  EXPECT_EQ(SinkOf(fits).Wait().reason, FinishReason::kLength);
}

TEST_F(ServeLoopTest, CancelTakesEffectWithinTheStep) {
  Start({.max_sequences = 1});
  auto decoding = MakeRequest("decoding", 10, 4000), queued = MakeRequest("queued");
  SinkOf(decoding).on_tokens = [&](absl::Span<const GeneratedToken>) {
    if (SinkOf(decoding).tokens().size() == 3) gate_.Close();
  };
  ASSERT_TRUE(loop_->Add(decoding).ok());
  ASSERT_TRUE(loop_->Add(queued).ok());
  SinkOf(decoding).WaitForTokens(3);
  gate_.AwaitHeld();
  loop_->Cancel("unknown");
  loop_->Cancel("queued");
  loop_->Cancel("decoding");
  loop_->Cancel("decoding");
  gate_.Open();
  EXPECT_EQ(SinkOf(decoding).Wait().reason, FinishReason::kCancelled);
  EXPECT_EQ(SinkOf(queued).Wait().reason, FinishReason::kCancelled);
  EXPECT_EQ(SinkOf(decoding).tokens().size(), 4u);  // the step that ran
  EXPECT_TRUE(SinkOf(queued).tokens().empty());
  loop_->Cancel("decoding");
  ExpectIdle();
}

TEST_F(ServeLoopTest, CancellingTheQueuedLeavesTheOthersAlone) {
  Start({.max_sequences = 2});
  gate_.Close();
  auto a = MakeRequest("a", 30, 40), b = MakeRequest("b", 70, 40), c = MakeRequest("c");
  for (const auto& request : {a, b, c}) ASSERT_TRUE(loop_->Add(request).ok());
  gate_.AwaitHeld();
  loop_->Cancel("c");
  gate_.Open();
  EXPECT_EQ(SinkOf(c).Wait().reason, FinishReason::kCancelled);
  for (const auto& request : {a, b}) {
    SinkOf(request).Wait();
    EXPECT_EQ(SinkOf(request).tokens(), FakeEngine::Expected(*request));
  }
}

TEST_F(ServeLoopTest, DeadlinesPassByTheInjectedClock) {
  Start({.max_sequences = 1}, {.on_step = [this](int64_t, const Batch&) {
          clock_.Advance(absl::Milliseconds(10));
          return absl::OkStatus();
        }});
  auto running = MakeRequest("running", 10, 1000), queued = MakeRequest("queued"),
       patient = MakeRequest("patient");
  running->deadline = clock_.Now() + absl::Milliseconds(55);
  queued->deadline = clock_.Now() + absl::Milliseconds(35);
  for (const auto& request : {running, queued, patient}) ASSERT_TRUE(loop_->Add(request).ok());
  EXPECT_EQ(SinkOf(running).Wait().reason, FinishReason::kDeadline);
  EXPECT_EQ(SinkOf(queued).Wait().reason, FinishReason::kDeadline);
  EXPECT_EQ(SinkOf(running).tokens().size(), 6u);
  EXPECT_EQ(SinkOf(patient).Wait().reason, FinishReason::kLength);
}

TEST_F(ServeLoopTest, EngineDeathEndsEveryOpenRequest) {
  Start({.max_sequences = 1}, {.on_step = [this](int64_t step, const Batch&) {
          gate_.Pass();
          return step < 3 ? absl::OkStatus() : absl::InternalError("out of memory on cpu");
        }});
  gate_.Close();
  auto running = MakeRequest("running", 10, 100), queued = MakeRequest("queued");
  ASSERT_TRUE(loop_->Add(running).ok());
  ASSERT_TRUE(loop_->Add(queued).ok());
  gate_.AwaitHeld();
  gate_.Open();
  for (const auto& request : {running, queued}) {
    const FinishInfo info = SinkOf(request).Wait();
    EXPECT_EQ(info.reason, FinishReason::kError);
    EXPECT_EQ(info.status.code(), absl::StatusCode::kUnavailable);
    EXPECT_THAT(std::string(info.status.message()), HasSubstr("out of memory on cpu"));
  }
  EXPECT_EQ(SinkOf(running).tokens().size(), 3u);
  EXPECT_EQ(loop_->Add(MakeRequest("late")).code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(loop_->stats().engine_status.code(), absl::StatusCode::kUnavailable);
  ExpectIdle();
  loop_->Cancel("running");
  loop_->Drain(absl::InfiniteFuture());
}

TEST_F(ServeLoopTest, DrainFinishesWhatIsOpen) {
  Start({.max_sequences = 2});
  gate_.Close();
  std::vector<std::shared_ptr<Request>> requests;
  for (int i = 0; i < 5; ++i) requests.push_back(MakeRequest("r" + std::to_string(i), 10, 20));
  for (const auto& request : requests) ASSERT_TRUE(loop_->Add(request).ok());
  std::thread drain([&] { loop_->Drain(clock_.Now() + absl::Seconds(30)); });
  clock_.AwaitWaiter();
  EXPECT_EQ(loop_->Add(MakeRequest("late")).code(), absl::StatusCode::kUnavailable);
  gate_.Open();
  drain.join();
  for (const auto& request : requests) {
    ASSERT_TRUE(SinkOf(request).finish().has_value());
    EXPECT_EQ(SinkOf(request).tokens(), FakeEngine::Expected(*request));
  }
}

TEST_F(ServeLoopTest, DrainCancelsTheRestAtItsDeadline) {
  Start();
  auto request = MakeRequest("a", 10, 4000);
  SinkOf(request).on_tokens = [&](absl::Span<const GeneratedToken>) {
    if (SinkOf(request).tokens().size() == 2) gate_.Close();
  };
  ASSERT_TRUE(loop_->Add(request).ok());
  SinkOf(request).WaitForTokens(2);
  gate_.AwaitHeld();
  std::thread drain([&] { loop_->Drain(clock_.Now() + absl::Seconds(30)); });
  clock_.AwaitWaiter();
  clock_.Advance(absl::Seconds(30));
  drain.join();  // although the step still runs
  EXPECT_EQ(SinkOf(request).finish(), std::nullopt);
  gate_.Open();
  EXPECT_EQ(SinkOf(request).Wait().reason, FinishReason::kCancelled);
}

TEST_F(ServeLoopTest, ASecondDrainEndsTheFirst) {
  Start({.max_sequences = 1});
  gate_.Close();
  auto running = MakeRequest("running", 10, 4000), waiting = MakeRequest("waiting");
  ASSERT_TRUE(loop_->Add(running).ok());
  ASSERT_TRUE(loop_->Add(waiting).ok());
  std::thread drain([&] { EXPECT_EQ(loop_->Drain(absl::InfiniteFuture()), 0); });
  clock_.AwaitWaiter();
  EXPECT_EQ(loop_->Drain(absl::InfinitePast()), 2);
  EXPECT_EQ(loop_->Drain(absl::InfinitePast()), 0);  // they are on their way
  gate_.Open();
  drain.join();
  for (const auto& request : {running, waiting}) {
    ASSERT_TRUE(SinkOf(request).finish().has_value());
    EXPECT_EQ(SinkOf(request).finish()->reason, FinishReason::kCancelled);
  }
}

TEST_F(ServeLoopTest, DestructionCancelsWhatIsLeft) {
  Start({.max_sequences = 1});
  gate_.Close();
  auto running = MakeRequest("running", 10, 4000), queued = MakeRequest("queued");
  ASSERT_TRUE(loop_->Add(running).ok());
  ASSERT_TRUE(loop_->Add(queued).ok());
  gate_.AwaitHeld();
  std::thread destroy([&] { loop_.reset(); });
  gate_.Open();
  destroy.join();
  EXPECT_EQ(SinkOf(running).finish()->reason, FinishReason::kCancelled);
  EXPECT_EQ(SinkOf(queued).finish()->reason, FinishReason::kCancelled);
}

// Many threads add, cancel and look on at once; each request ends once, with its own tokens.
TEST_F(ServeLoopTest, ManyThreadsAtOnce) {
  constexpr int kThreads = 8, kRequests = 60;
  Start({.max_batch_tokens = 64, .max_sequences = 6, .max_queued_requests = 4}, {.num_blocks = 12});
  std::atomic<int> accepted = 0, rejected = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < kRequests; ++i) {
        const uint64_t bits = RandomBits(t, i);
        auto request = MakeRequest("t" + std::to_string(t) + "." + std::to_string(i),
                                   1 + bits % 100, 1 + (bits >> 8) % 60);
        const absl::Status status = loop_->Add(request);
        if (!status.ok()) {
          ASSERT_EQ(status.code(), absl::StatusCode::kResourceExhausted) << status;
          ++rejected;
          continue;
        }
        ++accepted;
        const bool cancel = (bits >> 16) % 4 == 0;
        if (cancel) loop_->Cancel(request->id);
        EXPECT_LE(loop_->stats().running, 6);
        const FinishInfo info = SinkOf(request).Wait();
        const std::vector<int32_t> expected = FakeEngine::Expected(*request);
        if (cancel && info.reason == FinishReason::kCancelled) continue;
        ASSERT_EQ(info.reason, FinishReason::kLength) << info.status;
        ASSERT_EQ(SinkOf(request).tokens(), expected);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  ExpectIdle();
  int64_t finished = 0;
  for (int64_t count : loop_->stats().requests_finished) finished += count;
  EXPECT_EQ(finished, accepted);
  EXPECT_EQ(accepted + rejected, kThreads * kRequests);
  EXPECT_GT(accepted, kThreads);
}

}  // namespace
}  // namespace latentd
