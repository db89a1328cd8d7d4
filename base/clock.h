#pragma once

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/mutex.h"

namespace latentd {

// The time of day, passed to whoever needs it so that tests can hold it still. Thread-safe.
class Clock {
 public:
  virtual ~Clock() = default;
  virtual absl::Time Now() const = 0;

  // Waits until `condition` is notified or Now() reaches `deadline`; may return early. `mu` is held
  // by the caller and is released while waiting.
  virtual void WaitUntil(CondVar* condition, Mutex* mu, absl::Time deadline)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) = 0;
};

class SystemClock final : public Clock {
 public:
  absl::Time Now() const override { return absl::Now(); }
  void WaitUntil(CondVar* condition, Mutex* mu, absl::Time deadline) override
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu) {
    condition->WaitUntil(mu, deadline);
  }
};

}  // namespace latentd
