#include "scheduler/serve_loop.h"

#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/mutex.h"
#include "base/status_macros.h"
#include "scheduler/admission.h"
#include "scheduler/batch_builder.h"
#include "scheduler/inbox.h"
#include "scheduler/scheduler.h"

namespace latentd {

class ServeLoop::Impl {
 public:
  Impl(Engine* engine, const SchedulerConfig& config, SchedulerMetrics* metrics, Clock* clock,
       std::function<void()> on_engine_dead)
      : info_(engine->info()),
        metrics_(metrics),
        clock_(clock),
        on_engine_dead_(std::move(on_engine_dead)),
        inbox_(config, clock),
        engine_(engine),
        scheduler_(config, info_, metrics) {
    Publish();
    thread_ = std::thread([this] { Run(); });
  }

  ~Impl() {
    inbox_.Stop();
    thread_.join();
  }

  absl::Status Add(std::shared_ptr<const Request> request) {
    RETURN_IF_ERROR(CheckRequest(*request, info_));
    return inbox_.Add(std::move(request));
  }

  ServeStats stats() const {
    MutexLock lock(&stats_mu_);
    return stats_;
  }

  Inbox& inbox() { return inbox_; }

 private:
  void Run();
  void Apply(const Inbox::Contents& contents);
  void Step();
  void Settle();
  void Publish();

  // Constant.
  const EngineInfo info_;
  SchedulerMetrics* const metrics_;
  Clock* const clock_;
  const std::function<void()> on_engine_dead_;

  Inbox inbox_;

  // The loop's thread alone.
  Engine* const engine_;
  Scheduler scheduler_;
  absl::Status engine_status_;
  absl::Time last_progress_;

  mutable Mutex stats_mu_;
  ServeStats stats_ ABSL_GUARDED_BY(stats_mu_);

  std::thread thread_;
};

// No wait has a deadline: while any sequence is left there is a step to compute, and deadlines are
// looked at before each.
void ServeLoop::Impl::Run() {
  while (true) {
    const bool idle = scheduler_.empty();
    const Inbox::Contents contents = inbox_.Take(/*wait=*/idle);
    if (idle) last_progress_ = clock_->Now();
    Apply(contents);
    Settle();
    if (contents.stop) return;
    if (scheduler_.empty()) continue;
    Step();
    Settle();
  }
}

void ServeLoop::Impl::Apply(const Inbox::Contents& contents) {
  for (const Inbox::Message& message : contents.messages) {
    if (message.request != nullptr) {
      scheduler_.Add(message.request);
    } else {
      const absl::Time now = clock_->Now();
      if (scheduler_.Cancel(message.cancel_id, message.cancel_reason, now))
        metrics_->OnCancelFreed(now - message.cancel_time);
    }
  }
  const absl::Time now = clock_->Now();
  scheduler_.Expire(now);
  if (contents.cancel_all) scheduler_.FinishAll(FinishReason::kCancelled, absl::OkStatus(), now);
  if (!engine_status_.ok()) scheduler_.FinishAll(FinishReason::kError, engine_status_, now);
}

void ServeLoop::Impl::Step() {
  const StepPlan plan = scheduler_.Schedule(clock_->Now());
  absl::StatusOr<StepOutput> output = engine_->Step(BuildBatch(plan));
  last_progress_ = clock_->Now();
  if (output.ok()) return scheduler_.Commit(plan, *output, last_progress_);
  const std::string reason = absl::StrCat("the engine is dead: ", output.status().message());
  engine_status_ = absl::UnavailableError(reason);
  inbox_.EngineDied(reason);
  scheduler_.FinishAll(FinishReason::kError, engine_status_, last_progress_);
  on_engine_dead_();
}

// Makes what has changed visible, then tells the sinks: whoever hears of an end finds it in the
// counters, and the id free.
void ServeLoop::Impl::Settle() {
  const std::vector<FinishedRequest> finished = scheduler_.TakeFinished();
  std::vector<std::string> ids;
  ids.reserve(finished.size());
  for (const FinishedRequest& request : finished) ids.push_back(request.request->id);
  inbox_.Settle(ids, scheduler_.waiting_tokens());
  Publish();
  for (const FinishedRequest& request : finished) request.request->sink->OnFinish(request.info);
  inbox_.Delivered();
}

void ServeLoop::Impl::Publish() {
  ServeStats stats = scheduler_.stats();
  stats.last_step = last_progress_;
  stats.engine_status = engine_status_;
  metrics_->Publish(stats);
  MutexLock lock(&stats_mu_);
  stats_ = std::move(stats);
}

absl::StatusOr<std::unique_ptr<ServeLoop>> ServeLoop::Start(Engine* engine,
                                                            const SchedulerConfig& config,
                                                            SchedulerMetrics* metrics, Clock* clock,
                                                            std::function<void()> on_engine_dead) {
  if (absl::Status status = Validate(config); !status.ok()) return status;
  if (engine->info().num_blocks < 1) {
    return absl::InvalidArgumentError(absl::StrCat("the engine has ", engine->info().num_blocks,
                                                   " cache blocks, 1 is the least"));
  }
  if (engine->info().num_sequences < config.max_sequences) {
    return absl::InvalidArgumentError(absl::StrCat("max_sequences is ", config.max_sequences,
                                                   ", the engine's cache has seats for ",
                                                   engine->info().num_sequences));
  }
  return std::unique_ptr<ServeLoop>(new ServeLoop(
      std::make_unique<Impl>(engine, config, metrics, clock, std::move(on_engine_dead))));
}

ServeLoop::ServeLoop(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
ServeLoop::~ServeLoop() = default;

absl::Status ServeLoop::Add(std::shared_ptr<const Request> request) {
  return impl_->Add(std::move(request));
}
void ServeLoop::Cancel(const std::string& id, FinishReason reason) {
  impl_->inbox().Cancel(id, reason);
}
int ServeLoop::Drain(absl::Time deadline) { return impl_->inbox().Drain(deadline); }
ServeStats ServeLoop::stats() const { return impl_->stats(); }

}  // namespace latentd
