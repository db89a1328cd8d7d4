#pragma once

#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "scheduler/request.h"

namespace prometheus {
class Registry;
}  // namespace prometheus

namespace latentd {

struct ServeStats;

// How far a request had come when it ended: a label of metrics, nothing that the scheduler branches
// on.
enum class RequestPhase : uint8_t {
  kQueue,    // never scheduled
  kPrefill,  // scheduled, no token yet
  kDecode,   // has tokens
};
const char* Name(RequestPhase phase);

// The scheduler's families in a Prometheus registry, all with the prefix latentd_. A request counts
// once, when it ends, and before its sink hears of it; who refuses one to a client counts that.
// Thread-safe; reading the registry never waits for a step.
class SchedulerMetrics {
 public:
  // Registers the families. `registry` outlives this object.
  explicit SchedulerMetrics(prometheus::Registry& registry);
  ~SchedulerMetrics();

  void OnFirstScheduled(absl::Duration queue_time);
  void OnFirstToken(absl::Duration since_arrival);
  void OnNextToken(absl::Duration since_previous);
  void OnPreempted();
  void OnCancelFreed(absl::Duration since_cancel);

  // One engine step: `sampled` of its `sequences` drew a token, and it computed `rows` token rows,
  // of which `prompt_rows` were prompt tokens computed for the first time and `recomputed_rows`
  // were computed before a preemption already.
  struct Step {
    absl::Duration duration;
    int sequences = 0;
    int sampled = 0;
    int rows = 0;
    int prompt_rows = 0;
    int recomputed_rows = 0;
  };
  void OnStep(const Step& step);

  void OnFinished(const FinishInfo& info, RequestPhase phase, absl::Duration since_arrival);

  // The gauges.
  void Publish(const ServeStats& stats);

 private:
  struct Families;
  const std::unique_ptr<Families> families_;
};

}  // namespace latentd
