#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/mutex.h"
#include "scheduler/request.h"
#include "scheduler/scheduler_config.h"

namespace latentd {

// Everything that other threads share with the serve loop: what they ask of it, which ids are in
// use, how much waits. Its lock is held for microseconds, never during a step, so admission answers
// at once.
class Inbox {
 public:
  // Borrows `clock`.
  Inbox(const SchedulerConfig& config, Clock* clock);

  // ---- Any thread.

  // Takes in a request that CheckRequest has passed. Errors as ServeLoop::Add.
  absl::Status Add(std::shared_ptr<const Request> request);
  void Cancel(const std::string& id,
              FinishReason reason);  // without effect unless the id is in use
  // Refuses further requests. Returns when no request is open and every sink was told, or at
  // `deadline`, having asked the loop to cancel the rest: so many, 0 when that was asked before.
  int Drain(absl::Time deadline);
  void Stop();  // asks the loop to cancel all and end

  // ---- The loop's thread.

  // One thing asked for: a new request, or (request == null) the end of one.
  struct Message {
    std::shared_ptr<const Request> request;
    std::string cancel_id;
    FinishReason cancel_reason = FinishReason::kCancelled;
    absl::Time cancel_time;
  };
  struct Contents {
    std::vector<Message> messages;  // in the order in which they were sent
    bool cancel_all = false;
    bool stop = false;
  };
  // Empties the inbox; if `wait`, waits until there is something in it.
  Contents Take(bool wait);

  // Tells of these requests that they are over, so that their ids are free again and the queue is
  // shorter; of the taken ones, sequences with `waiting_tokens` in all still wait. A Delivered()
  // follows once the sinks were told.
  void Settle(const std::vector<std::string>& finished_ids, int64_t waiting_tokens);
  void Delivered();

  // From here on every Add is refused with UNAVAILABLE and this reason.
  void EngineDied(std::string reason);

 private:
  absl::Status Admit(const Request& request) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const SchedulerConfig config_;
  Clock* const clock_;

  Mutex mu_;
  CondVar filled_;   // the inbox is not empty
  CondVar drained_;  // no request is open and every sink was told
  Contents contents_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<std::string, bool> open_ ABSL_GUARDED_BY(mu_);  // id -> cancel was asked for
  int64_t new_tokens_ ABSL_GUARDED_BY(mu_) = 0;      // of the requests in contents_
  int64_t waiting_tokens_ ABSL_GUARDED_BY(mu_) = 0;  // of those that the loop has taken
  bool delivering_ ABSL_GUARDED_BY(mu_) = false;
  bool draining_ ABSL_GUARDED_BY(mu_) = false;
  bool cancelling_ ABSL_GUARDED_BY(mu_) = false;  // cancel_all was asked for
  std::string death_ ABSL_GUARDED_BY(mu_);        // why the engine died; empty: it lives
};

}  // namespace latentd
