#pragma once

#include <functional>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/engine.h"
#include "scheduler/metrics.h"
#include "scheduler/request.h"
#include "scheduler/scheduler_config.h"
#include "scheduler/serve_stats.h"

namespace latentd {

// The one thread that owns all scheduling state: drains the inbox {add, cancel}, ends what is past
// its deadline, schedules, builds the batch, steps the engine, commits the tokens. Waits on a
// condition when there is nothing to do. Thread-safe from outside.
class ServeLoop {
 public:
  // All three are borrowed for the loop's lifetime; `engine` is used by the loop's thread alone.
  // Starts the thread. INVALID_ARGUMENT names a limit of `config` that is too low, or an engine
  // without blocks or with fewer seats than max_sequences. `on_engine_dead` is called once, by the
  // loop's thread, when a step has failed; it must not block.
  static absl::StatusOr<std::unique_ptr<ServeLoop>> Start(
      Engine* engine, const SchedulerConfig& config, SchedulerMetrics* metrics, Clock* clock,
      std::function<void()> on_engine_dead = [] {});
  ~ServeLoop();  // cancels what is left, joins

  // Hands a request over, without waiting for a step. Errors leave it untouched (the sink is never
  // called): RESOURCE_EXHAUSTED queue full; INVALID_ARGUMENT prompt + max_new_tokens over the
  // context or the pool (both numbers), an id out of the vocabulary; ALREADY_EXISTS an id in use;
  // UNAVAILABLE draining, or the engine is dead.
  absl::Status Add(std::shared_ptr<const Request> request);

  // Ends the request within the next step; without effect when it is unknown or over. `reason` is
  // kCancelled, or kStop when its text met a stop string.
  void Cancel(const std::string& id, FinishReason reason = FinishReason::kCancelled);

  // No new requests; returns when the open ones are over and their sinks told, or at `deadline`,
  // where they are cancelled: so many, 0 when they are cancelled already. A second one with an
  // earlier deadline ends the first within the next step.
  int Drain(absl::Time deadline);

  ServeStats stats() const;  // never waits for a step

 private:
  class Impl;
  explicit ServeLoop(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace latentd
