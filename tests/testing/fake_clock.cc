#include "tests/testing/fake_clock.h"

#include <algorithm>

namespace latentd {

absl::Time FakeClock::Now() const {
  MutexLock lock(&mu_);
  return now_;
}

void FakeClock::WaitUntil(CondVar* condition, Mutex* mu, absl::Time deadline) {
  Waiter waiter{condition, mu, deadline};
  {
    MutexLock lock(&mu_);
    if (now_ >= deadline) return;
    waiters_.push_back(&waiter);
    has_waiter_.NotifyAll();
  }
  condition->Wait(mu);
  MutexLock lock(&mu_);
  waiters_.erase(std::find(waiters_.begin(), waiters_.end(), &waiter));
}

void FakeClock::Advance(absl::Duration duration) {
  std::vector<Waiter> due;
  {
    MutexLock lock(&mu_);
    now_ += duration;
    for (const Waiter* waiter : waiters_) {
      if (waiter->deadline <= now_) due.push_back(*waiter);
    }
  }
  for (const Waiter& waiter : due) {
    // Under the waiter's mutex, since it may have looked at the time but not yet gone to sleep.
    MutexLock lock(waiter.mu);
    waiter.condition->NotifyAll();
  }
}

void FakeClock::AwaitWaiter() {
  MutexLock lock(&mu_);
  while (waiters_.empty()) has_waiter_.Wait(&mu_);
}

}  // namespace latentd
