#include "scheduler/scheduler.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"

namespace latentd {
namespace {

RequestPhase PhaseOf(const Sequence& sequence) {
  if (sequence.num_generated() > 0) return RequestPhase::kDecode;
  if (sequence.first_scheduled != absl::InfiniteFuture()) return RequestPhase::kPrefill;
  return RequestPhase::kQueue;
}

GeneratedToken TokenOf(const SampleResult& sample) {
  return {.id = sample.token_id, .logprob = sample.logprob, .top_logprobs = sample.top};
}

}  // namespace

Scheduler::Scheduler(const SchedulerConfig& config, int64_t num_blocks, double block_bytes,
                     SchedulerMetrics* metrics)
    : config_(config), block_bytes_(block_bytes), metrics_(metrics), pool_(num_blocks) {
  counters_.blocks_total = num_blocks;
}

void Scheduler::Add(std::shared_ptr<const Request> request) {
  auto sequence = std::make_unique<Sequence>();
  sequence->arrival_number = num_added_++;
  sequence->tokens = request->prompt;
  sequence->request = std::move(request);
  waiting_.push_back(std::move(sequence));
}

bool Scheduler::Cancel(const std::string& id, FinishReason reason, absl::Time now) {
  return FinishWhere([&](const Sequence& sequence) { return sequence.request->id == id; }, reason,
                     absl::OkStatus(), now);
}

void Scheduler::Expire(absl::Time now) {
  FinishWhere([&](const Sequence& sequence) { return sequence.request->deadline <= now; },
              FinishReason::kDeadline, absl::OkStatus(), now);
}

void Scheduler::FinishAll(FinishReason reason, const absl::Status& status, absl::Time now) {
  FinishWhere([](const Sequence&) { return true; }, reason, status, now);
}

StepPlan Scheduler::Schedule(absl::Time now) {
  step_start_ = now;
  StepPlan plan;
  int budget = config_.max_batch_tokens;
  auto plan_rows = [&](Sequence* sequence) {
    const int rows = std::min(budget, sequence->num_pending());
    if (rows > 0) plan.push_back({sequence, rows});
    budget -= rows;
  };
  // By index: preemption shortens the list from its end, never before the sequence at hand.
  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    Sequence* sequence = running_[i].get();
    if (sequence->num_pending() == 1 && EnsureBlocks(sequence)) plan_rows(sequence);
  }
  for (const auto& sequence : running_) {
    if (sequence->num_pending() > 1) plan_rows(sequence.get());
  }
  while (budget > 0 && Admit(now)) plan_rows(running_.back().get());
  LATENTD_CHECK(empty() || !plan.empty());
  return plan;
}

// False when the sequence itself had to give way.
bool Scheduler::EnsureBlocks(Sequence* sequence) {
  const int64_t missing =
      BlocksFor(sequence->num_tokens()) - static_cast<int64_t>(sequence->blocks.size());
  while (missing > 0 && !pool_.Allocate(missing, &sequence->blocks)) {
    LATENTD_CHECK(running_.size() > 1);  // alone, it fits
    const bool gives_way = running_.back().get() == sequence;
    PreemptLatest();
    if (gives_way) return false;
  }
  sequence->peak_blocks =
      std::max(sequence->peak_blocks, static_cast<int64_t>(sequence->blocks.size()));
  return true;
}

// The latest arrival gives way: mostly it has computed least, and as the oldest never does, all
// come to an end.
void Scheduler::PreemptLatest() {
  std::unique_ptr<Sequence> sequence = std::move(running_.back());
  running_.pop_back();
  pool_.Release(&sequence->blocks);
  sequence->num_computed = 0;
  ++sequence->preemptions;
  ++counters_.preemptions;
  metrics_->OnPreempted();
  waiting_.push_front(std::move(sequence));
}

// Blocks beyond those of its present tokens to keep for the sequence, going by what others used of
// their limits; half, as sequences of different age grow into each other's blocks (measured: a
// fifth fewer steps than the whole for a mixed load in a tight pool, and still little is computed
// twice). Its last token is never computed.
int64_t Scheduler::ExpectedGrowth(const Sequence& sequence) const {
  const int64_t most = int64_t{sequence.num_prompt_tokens()} + sequence.request->max_new_tokens - 1;
  const int64_t growth = BlocksFor(most) - BlocksFor(sequence.num_tokens());
  return static_cast<int64_t>(std::ceil(used_share_ / 2 * static_cast<double>(growth)));
}

// Moves the first waiting sequence to the running ones if there is a place, and blocks for all its
// tokens and for the growth that is expected of all: else they would soon preempt it, and what it
// computed would be lost.
bool Scheduler::Admit(absl::Time now) {
  if (waiting_.empty() || static_cast<int>(running_.size()) >= config_.max_sequences) return false;
  Sequence* sequence = waiting_.front().get();
  if (!running_.empty()) {
    int64_t wanted = BlocksFor(sequence->num_tokens()) + ExpectedGrowth(*sequence);
    for (const auto& other : running_) wanted += ExpectedGrowth(*other);
    if (wanted > pool_.free()) return false;
  }
  running_.push_back(std::move(waiting_.front()));
  waiting_.pop_front();
  LATENTD_CHECK(EnsureBlocks(sequence));
  if (sequence->first_scheduled == absl::InfiniteFuture()) {
    sequence->first_scheduled = now;
    metrics_->OnFirstScheduled(now - sequence->request->arrival);
  }
  return true;
}

void Scheduler::Commit(const StepPlan& plan, const StepOutput& output, absl::Time now) {
  SchedulerMetrics::Step step{.duration = now - step_start_,
                              .sequences = static_cast<int>(plan.size())};
  ++counters_.steps;
  counters_.last_step = now;
  for (const StepEntry& entry : plan) {
    Sequence* sequence = entry.sequence;
    const int begin = sequence->num_computed;
    const int end = begin + entry.num_tokens;
    sequence->num_computed = end;
    step.rows += entry.num_tokens;
    step.recomputed_rows += std::max(0, std::min(end, sequence->max_computed) - begin);
    step.prompt_rows += std::max(
        0, std::min(end, sequence->num_prompt_tokens()) - std::max(begin, sequence->max_computed));
    sequence->max_computed = std::max(sequence->max_computed, end);
    if (sequence->num_pending() > 0) continue;
    LATENTD_CHECK(step.sampled < static_cast<int>(output.samples.size()));
    TakeSample(sequence, output.samples[step.sampled++], now);  // may end the sequence
  }
  LATENTD_CHECK(step.sampled == static_cast<int>(output.samples.size()));
  counters_.prompt_tokens += step.prompt_rows;
  counters_.recomputed_tokens += step.recomputed_rows;
  metrics_->OnStep(step);
}

void Scheduler::TakeSample(Sequence* sequence, const SampleResult& sample, absl::Time now) {
  const Request& request = *sequence->request;
  auto finish = [&](FinishReason reason, const absl::Status& status) {
    FinishWhere([&](const Sequence& other) { return &other == sequence; }, reason, status, now);
  };
  if (!sample.ok) {
    return finish(FinishReason::kError,
                  absl::InternalError(absl::StrCat("request ", request.id,
                                                   ": the model gave no usable logits at position ",
                                                   sequence->num_tokens())));
  }
  if (sequence->num_generated() == 0) {
    sequence->first_token = now;
    metrics_->OnFirstToken(now - request.arrival);
  } else {
    metrics_->OnNextToken(now - sequence->last_token);
  }
  sequence->last_token = now;
  sequence->tokens.push_back(sample.token_id);
  ++counters_.generated_tokens;
  const GeneratedToken token = TokenOf(sample);
  request.sink->OnTokens({&token, 1});
  if (absl::c_linear_search(request.stop_token_ids, sample.token_id)) {
    finish(FinishReason::kStop, absl::OkStatus());
  } else if (sequence->num_generated() >= request.max_new_tokens) {
    finish(FinishReason::kLength, absl::OkStatus());
  }
}

// False when there was none.
bool Scheduler::FinishWhere(absl::FunctionRef<bool(const Sequence&)> ends, FinishReason reason,
                            const absl::Status& status, absl::Time now) {
  bool any = false;
  for (List* list : {&running_, &waiting_}) {
    if (absl::c_none_of(*list, [&](const auto& sequence) { return ends(*sequence); })) continue;
    auto kept = std::stable_partition(list->begin(), list->end(),
                                      [&](const auto& sequence) { return !ends(*sequence); });
    List ended(std::make_move_iterator(kept), std::make_move_iterator(list->end()));
    list->erase(kept, list->end());
    for (auto& sequence : ended) Finish(std::move(sequence), reason, status, now);
    any = true;
  }
  return any;
}

void Scheduler::Finish(std::unique_ptr<Sequence> sequence, FinishReason reason,
                       const absl::Status& status, absl::Time now) {
  pool_.Release(&sequence->blocks);
  const absl::Time scheduled = std::min(sequence->first_scheduled, now);
  const absl::Time first_token = std::min(sequence->first_token, now);
  FinishInfo info{
      .reason = reason,
      .status = status,
      .prompt_tokens = sequence->num_prompt_tokens(),
      .generated_tokens = sequence->num_generated(),
      .preemptions = sequence->preemptions,
      .cache_bytes = static_cast<int64_t>(block_bytes_ * sequence->peak_blocks),
      .queue_time = scheduled - sequence->request->arrival,
      .prefill_time = first_token - scheduled,
      .decode_time = std::min(sequence->last_token, now) - first_token,
  };
  if (reason == FinishReason::kStop || reason == FinishReason::kLength) {
    const double used =
        static_cast<double>(info.generated_tokens) / sequence->request->max_new_tokens;
    used_share_ += (used - used_share_) / 16;
  }
  ++counters_.requests_finished[static_cast<int>(reason)];
  metrics_->OnFinished(info, PhaseOf(*sequence), now - sequence->request->arrival);
  finished_.push_back({std::move(sequence->request), std::move(info)});
}

std::vector<FinishedRequest> Scheduler::TakeFinished() { return std::exchange(finished_, {}); }

int64_t Scheduler::waiting_tokens() const {
  int64_t tokens = 0;
  for (const auto& sequence : waiting_) tokens += sequence->num_tokens();
  return tokens;
}

ServeStats Scheduler::stats() const {
  ServeStats stats = counters_;
  stats.running = static_cast<int>(running_.size());
  stats.waiting = static_cast<int>(waiting_.size());
  stats.blocks_used = pool_.used();
  return stats;
}

void Scheduler::CheckInvariants() const {
  std::vector<bool> seen(pool_.total(), false);
  int64_t held = 0;
  for (const auto& sequence : running_) {
    for (int32_t block : sequence->blocks) {
      LATENTD_CHECK(!seen[block]);
      seen[block] = true;
      ++held;
    }
    LATENTD_CHECK(static_cast<int64_t>(sequence->blocks.size()) >=
                  BlocksFor(sequence->num_computed));
    LATENTD_CHECK(sequence->num_pending() > 0);
  }
  LATENTD_CHECK(held == pool_.used());
  for (const auto& sequence : waiting_) {
    LATENTD_CHECK(sequence->blocks.empty() && sequence->num_computed == 0);
  }
  std::vector<const Sequence*> all;
  for (const auto& sequence : running_) all.push_back(sequence.get());
  for (const auto& sequence : waiting_) all.push_back(sequence.get());
  LATENTD_CHECK(std::is_sorted(all.begin(), all.end(), [](const auto* a, const auto* b) {
    return a->arrival_number < b->arrival_number;
  }));
}

}  // namespace latentd
