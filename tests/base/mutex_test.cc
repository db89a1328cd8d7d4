#include "base/mutex.h"

#include <atomic>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

class Counter {
 public:
  void Increment() {
    MutexLock lock(&mu_);
    ++count_;
    if (count_ == 4000) full_.NotifyAll();
  }

  int WaitUntilFull() {
    MutexLock lock(&mu_);
    while (count_ < 4000) full_.Wait(&mu_);
    return count_;
  }

 private:
  Mutex mu_;
  CondVar full_;
  int count_ ABSL_GUARDED_BY(mu_) = 0;
};

TEST(MutexTest, NoIncrementIsLostAndTheWaiterWakes) {
  Counter counter;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&counter] {
      for (int i = 0; i < 1000; ++i) counter.Increment();
    });
  }
  EXPECT_EQ(counter.WaitUntilFull(), 4000);
  for (std::thread& thread : threads) thread.join();
}

TEST(MutexTest, WaitUntilEndsAtItsDeadlineAndHoldsTheMutexAgain) {
  Mutex mu;
  CondVar never;
  const absl::Time deadline = absl::Now() + absl::Milliseconds(20);
  mu.Lock();
  while (absl::Now() < deadline) never.WaitUntil(&mu, deadline);
  std::atomic<bool> entered = false;
  std::thread other([&] {
    MutexLock lock(&mu);
    entered = true;
  });
  EXPECT_FALSE(entered);
  mu.Unlock();
  other.join();
  EXPECT_TRUE(entered);
}

}  // namespace
}  // namespace latentd
