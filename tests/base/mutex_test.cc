#include "base/mutex.h"

#include <thread>
#include <vector>

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
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  mu.Lock();
  while (never.WaitUntil(&mu, deadline)) {
  }
  mu.Unlock();  // a mutex that is not held would deadlock or be reported below
  EXPECT_GE(std::chrono::steady_clock::now(), deadline);
  MutexLock lock(&mu);
}

}  // namespace
}  // namespace latentd
