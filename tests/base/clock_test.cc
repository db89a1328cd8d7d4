#include "base/clock.h"

#include <thread>

#include "gtest/gtest.h"

namespace latentd {
namespace {

TEST(SystemClockTest, WaitUntilReachesItsDeadline) {
  SystemClock clock;
  Mutex mu;
  CondVar never;
  const absl::Time deadline = clock.Now() + absl::Milliseconds(20);
  MutexLock lock(&mu);
  while (clock.Now() < deadline) clock.WaitUntil(&never, &mu, deadline);
  EXPECT_LT(clock.Now(), deadline + absl::Seconds(10));
}

TEST(SystemClockTest, ANotificationEndsAWaitWithoutDeadline) {
  SystemClock clock;
  Mutex mu;
  CondVar changed;
  bool done = false;
  std::thread other([&] {
    MutexLock lock(&mu);
    done = true;
    changed.NotifyOne();
  });
  {
    MutexLock lock(&mu);
    while (!done) clock.WaitUntil(&changed, &mu, absl::InfiniteFuture());
  }
  other.join();
  EXPECT_TRUE(done);
}

}  // namespace
}  // namespace latentd
