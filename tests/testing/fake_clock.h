#pragma once

#include <vector>

#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"

namespace latentd {

// A clock that stands still until a test moves it. Thread-safe. What waits on it outlives every
// Advance.
class FakeClock final : public Clock {
 public:
  absl::Time Now() const override;
  void WaitUntil(CondVar* condition, Mutex* mu, absl::Time deadline) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);

  // Moves the clock on and wakes every waiter whose deadline has come.
  void Advance(absl::Duration duration);

  // Returns once somebody waits for a time.
  void AwaitWaiter();

 private:
  struct Waiter {
    CondVar* condition;
    Mutex* mu;
    absl::Time deadline;
  };

  mutable Mutex mu_;  // taken after a waiter's mutex, never before
  CondVar has_waiter_;
  absl::Time now_ ABSL_GUARDED_BY(mu_) = absl::FromUnixSeconds(1'700'000'000);
  std::vector<Waiter*> waiters_ ABSL_GUARDED_BY(mu_);
};

}  // namespace latentd
