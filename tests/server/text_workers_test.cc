#include "server/text_workers.h"

#include <atomic>
#include <string>

#include "base/mutex.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

// Lets threads wait for each other.
class Gate {
 public:
  void Open() {
    MutexLock lock(&mu_);
    open_ = true;
    opened_.NotifyAll();
  }
  void Wait() {
    MutexLock lock(&mu_);
    while (!open_) opened_.Wait(&mu_);
  }

 private:
  Mutex mu_;
  CondVar opened_;
  bool open_ ABSL_GUARDED_BY(mu_) = false;
};

TEST(TextWorkersTest, EveryJobRunsBeforeTheEnd) {
  for (int round = 0; round < 50; ++round) {
    std::atomic<int> ran{0};
    {
      TextWorkers workers(2 + round % 3);
      for (int i = 0; i < 100; ++i) {
        workers.Submit([&] { ++ran; });
        workers.SubmitPrompt([&] { ++ran; });
      }
    }
    EXPECT_EQ(ran, 200);
  }
}

TEST(TextWorkersTest, PromptsNeverTakeTheLastThread) {
  Gate release, token_ran;
  TextWorkers workers(3);
  for (int i = 0; i < 10; ++i) workers.SubmitPrompt([&] { release.Wait(); });
  workers.Submit([&] { token_ran.Open(); });
  token_ran.Wait();  // for ever, if prompts held all three
  release.Open();
}

TEST(TextWorkersTest, TokensOvertakePrompts) {
  Gate started, release;
  std::string order;
  Mutex mu;
  const auto note = [&](char c) {
    MutexLock lock(&mu);
    order += c;
  };
  {
    TextWorkers workers(2);
    workers.SubmitPrompt([&] {
      started.Open();
      release.Wait();
    });
    started.Wait();
    Gate busy;
    workers.Submit([&] { busy.Wait(); });  // now both threads wait
    for (int i = 0; i < 3; ++i) workers.SubmitPrompt([&] { note('p'); });
    for (int i = 0; i < 3; ++i) workers.Submit([&] { note('t'); });
    busy.Open();
    while (true) {
      MutexLock lock(&mu);
      if (order.size() >= 3) break;
    }
    release.Open();
  }
  EXPECT_EQ(order, "tttppp");
}

}  // namespace
}  // namespace latentd
