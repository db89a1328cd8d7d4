#include "scheduler/inbox.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace latentd {

Inbox::Inbox(const SchedulerConfig& config, Clock* clock) : config_(config), clock_(clock) {}

absl::Status Inbox::Add(std::shared_ptr<const Request> request) {
  MutexLock lock(&mu_);
  RETURN_IF_ERROR(Admit(*request));
  open_.emplace(request->id, false);
  new_tokens_ += static_cast<int64_t>(request->prompt.size());
  contents_.messages.push_back({.request = std::move(request)});
  filled_.NotifyOne();
  return absl::OkStatus();
}

absl::Status Inbox::Admit(const Request& request) {
  if (!death_.empty()) return absl::UnavailableError(death_);
  if (draining_)
    return absl::UnavailableError("the server is shutting down and takes no new requests");
  if (open_.contains(request.id)) {
    return absl::AlreadyExistsError(absl::StrCat("request id ", request.id, " is in use"));
  }
  const int64_t open = static_cast<int64_t>(open_.size());
  const int64_t most = int64_t{config_.max_sequences} + config_.max_queued_requests;
  if (open >= most) {
    return absl::ResourceExhaustedError(
        absl::StrCat("queue full: ", open, " requests are running or waiting, the limit is ", most,
                     " (", config_.max_sequences, " + ", config_.max_queued_requests, ")"));
  }
  // A prompt longer than the whole limit is let into an empty queue.
  const int64_t queued = new_tokens_ + waiting_tokens_;
  const int64_t more = static_cast<int64_t>(request.prompt.size());
  if (queued > 0 && queued + more > config_.max_queued_tokens) {
    return absl::ResourceExhaustedError(absl::StrCat("queue full: ", queued,
                                                     " tokens wait and the prompt has ", more,
                                                     ", the limit is ", config_.max_queued_tokens));
  }
  return absl::OkStatus();
}

void Inbox::Cancel(const std::string& id, FinishReason reason) {
  const absl::Time now = clock_->Now();
  MutexLock lock(&mu_);
  auto open = open_.find(id);
  if (open == open_.end() || open->second) return;
  open->second = true;
  contents_.messages.push_back({.cancel_id = id, .cancel_reason = reason, .cancel_time = now});
  filled_.NotifyOne();
}

int Inbox::Drain(absl::Time deadline) {
  MutexLock lock(&mu_);
  draining_ = true;
  while (!open_.empty() || delivering_) {
    if (clock_->Now() >= deadline) {
      if (std::exchange(cancelling_, true)) return 0;
      contents_.cancel_all = true;
      filled_.NotifyOne();
      return static_cast<int>(open_.size());
    }
    clock_->WaitUntil(&drained_, &mu_, deadline);
  }
  return 0;
}

void Inbox::Stop() {
  MutexLock lock(&mu_);
  draining_ = cancelling_ = true;
  contents_.cancel_all = true;
  contents_.stop = true;
  filled_.NotifyOne();
}

Inbox::Contents Inbox::Take(bool wait) {
  MutexLock lock(&mu_);
  while (wait && contents_.messages.empty() && !contents_.cancel_all) filled_.Wait(&mu_);
  waiting_tokens_ += std::exchange(new_tokens_, 0);
  return std::exchange(contents_, {});
}

void Inbox::Settle(const std::vector<std::string>& finished_ids, int64_t waiting_tokens) {
  MutexLock lock(&mu_);
  for (const std::string& id : finished_ids) open_.erase(id);
  waiting_tokens_ = waiting_tokens;
  delivering_ = !finished_ids.empty();
}

void Inbox::Delivered() {
  MutexLock lock(&mu_);
  delivering_ = false;
  if (open_.empty()) drained_.NotifyAll();
}

void Inbox::EngineDied(std::string reason) {
  MutexLock lock(&mu_);
  death_ = std::move(reason);
}

}  // namespace latentd
