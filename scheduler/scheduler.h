#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/time/time.h"
#include "engine/batch.h"
#include "engine/engine.h"
#include "scheduler/block_pool.h"
#include "scheduler/metrics.h"
#include "scheduler/request.h"
#include "scheduler/scheduler_config.h"
#include "scheduler/sequence.h"
#include "scheduler/serve_stats.h"

namespace latentd {

// What one step computes: the next num_tokens uncomputed tokens of each sequence. A sequence whose
// last token is among them is sampled.
struct StepEntry {
  Sequence* sequence = nullptr;
  int num_tokens = 0;
};
using StepPlan = std::vector<StepEntry>;

// A request that is over; its sink is still to be told.
struct FinishedRequest {
  std::shared_ptr<const Request> request;
  FinishInfo info;
};

// Decides what the next step computes, and owns every sequence and block. One thread, no locks.
// Always holds:
//   - both lists are in order of arrival, and every running sequence arrived before every waiting
//     one;
//   - a waiting sequence holds neither blocks nor a seat; a running one has a seat of its own, and
//     blocks for all tokens that it is scheduled for, but none that lies wholly behind the window
//     of its next token;
//   - between steps only the latest of the running ones can lack more than its last token: while a
//     chunk is cut short nobody is let in.
// So the oldest sequence is never preempted. As each fits alone in the pool (CheckRequest), every
// step that Schedule plans while there is work computes something, and all of them finish.
class Scheduler {
 public:
  // `info` is of the engine whose cache this shares out, with at least config.max_sequences seats.
  // `metrics` is borrowed.
  Scheduler(const SchedulerConfig& config, const EngineInfo& info, SchedulerMetrics* metrics);

  void Add(std::shared_ptr<const Request> request);

  // Ends a request, as kCancelled or kStop; false when there is none of this id.
  bool Cancel(const std::string& id, FinishReason reason, absl::Time now);
  // Ends all whose deadline is at or before `now`.
  void Expire(absl::Time now);
  // Ends all. `status` is not OK for kError.
  void FinishAll(FinishReason reason, const absl::Status& status, absl::Time now);

  // At most max_batch_tokens rows: one for each sequence that lacks only its last token, then a
  // chunk of the latest, then waiting ones, in order of arrival. Allocates the blocks,
  // preempting the latest arrivals when there are too few (a chunk under a sliding window takes
  // what blocks are free and is cut to them). Empty only if there is no work. The pointers are good
  // until the Commit that must follow, or FinishAll.
  StepPlan Schedule(absl::Time now);

  // Takes the results of the planned step: hands drawn tokens to the sinks, ends sequences that are
  // done.
  void Commit(const StepPlan& plan, const StepOutput& output, absl::Time now);

  // Those that have ended since the last call; they hold nothing any more.
  std::vector<FinishedRequest> TakeFinished();

  bool empty() const { return running_.empty() && waiting_.empty(); }
  int64_t waiting_tokens() const;  // that the waiting sequences have, prompt and output
  ServeStats stats() const;        // without engine_status

  // Aborts unless the class's invariants hold and the sequences' blocks are exactly the pool's used
  // ones.
  void CheckInvariants() const;

 private:
  using List = std::deque<std::unique_ptr<Sequence>>;

  int EnsureBlocks(Sequence* sequence, int rows);
  void PreemptLatest();
  bool Admit(absl::Time now);
  int64_t WantedBlocks(const Sequence& sequence) const;
  void GiveBackBehindWindow(Sequence* sequence);
  void Leave(Sequence* sequence);
  int64_t BytesOf(int64_t blocks, int seats) const;
  void TakeSample(Sequence* sequence, const SampleResult& sample, absl::Time now);
  bool FinishWhere(absl::FunctionRef<bool(const Sequence&)> ends, FinishReason reason,
                   const absl::Status& status, absl::Time now);
  void Finish(std::unique_ptr<Sequence> sequence, FinishReason reason, const absl::Status& status,
              absl::Time now);

  const SchedulerConfig config_;
  const EngineInfo info_;
  SchedulerMetrics* const metrics_;

  BlockPool pool_;
  std::vector<int32_t> free_seats_;  // a stack
  List running_;
  List waiting_;
  std::vector<FinishedRequest> finished_;
  int64_t num_added_ = 0;
  double used_share_ = 1.0;  // of max_new_tokens that a request generates: a moving mean
  absl::Time step_start_;
  ServeStats counters_;  // of which only the counters and last_step are kept up
};

}  // namespace latentd
