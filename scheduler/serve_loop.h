#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/clock.h"
#include "engine/engine.h"
#include "scheduler/metrics.h"
#include "scheduler/request.h"

namespace latentd {

struct SchedulerConfig {
  int max_batch_tokens = 512;     // token rows of one step
  int max_sequences = 64;         // running at once
  int max_queued_requests = 256;  // waiting, beyond the running ones
  int64_t max_queued_tokens = 1 << 20;
};

// A consistent picture of the loop after its latest step.
struct ServeStats {
  int running = 0;
  int waiting = 0;
  int64_t blocks_used = 0;
  int64_t blocks_total = 0;
  int64_t steps = 0;
  int64_t prompt_tokens = 0;      // computed
  int64_t recomputed_tokens = 0;  // computed again after a preemption
  int64_t generated_tokens = 0;
  int64_t preemptions = 0;
  int64_t requests_finished[5] = {};  // by FinishReason
  absl::Time last_step;
  bool draining = false;
  absl::Status engine_status;  // not OK: the engine is dead
};

// The one thread that owns all scheduling state: drains the inbox {add, cancel, deadlines},
// schedules, builds the batch, steps the engine, commits the tokens. Waits on a condition when
// there is nothing to do. Thread-safe from outside.
class ServeLoop {
 public:
  // All three are borrowed for the loop's lifetime; `engine` is used by the loop's thread alone.
  // Starts the thread. INVALID_ARGUMENT names a limit of `config` that is below 1.
  static absl::StatusOr<std::unique_ptr<ServeLoop>> Start(Engine* engine,
                                                          const SchedulerConfig& config,
                                                          SchedulerMetrics* metrics, Clock* clock);
  ~ServeLoop();  // cancels what is left, joins

  // Hands a request over. Errors leave it untouched (the sink is never called): RESOURCE_EXHAUSTED
  // queue full; INVALID_ARGUMENT prompt + max_new_tokens over the context or the pool (both
  // numbers), an id out of the vocabulary; ALREADY_EXISTS an id in use; UNAVAILABLE draining, or
  // the engine is dead.
  absl::Status Add(std::shared_ptr<const Request> request);

  // Ends the request within the next step; without effect when it is unknown or over.
  void Cancel(const std::string& id);

  // No new requests; returns when the running ones are over or at `deadline`, after which they are
  // cancelled.
  void Drain(absl::Time deadline);

  ServeStats stats() const;  // never waits for a step

 private:
  class Impl;
  explicit ServeLoop(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace latentd
