#include "scheduler/scheduler.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/cache_layout.h"

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

Scheduler::Scheduler(const SchedulerConfig& config, const EngineInfo& info,
                     SchedulerMetrics* metrics)
    : config_(config), info_(info), metrics_(metrics), pool_(info.num_blocks) {
  LATENTD_CHECK(config.max_sequences <= info.num_sequences);
  for (int32_t seat = config.max_sequences - 1; seat >= 0; --seat) free_seats_.push_back(seat);
  counters_.blocks_total = info.num_blocks;
  counters_.seats_total = config.max_sequences;
  counters_.cache_bytes_total = BytesOf(info.num_blocks, config.max_sequences);
}

int64_t Scheduler::BytesOf(int64_t blocks, int seats) const {
  return std::llround(static_cast<double>(blocks) * kBlockTokens * info_.bytes_per_token +
                      seats * info_.bytes_per_sequence);
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
  const auto plan_rows = [&](Sequence* sequence) {
    const int rows = EnsureBlocks(sequence, std::min(budget, sequence->num_pending()));
    if (rows > 0) plan.push_back({sequence, rows});
    budget -= rows;
  };
  // By index: preemption shortens the list from its end, never before the sequence at hand.
  for (size_t i = 0; i < running_.size() && budget > 0; ++i) {
    if (running_[i]->num_pending() == 1) {
      plan_rows(running_[i].get());
    } else {
      LATENTD_CHECK(i + 1 == running_.size());
    }
  }
  if (budget > 0 && !running_.empty() && running_.back()->num_pending() > 1) {
    plan_rows(running_.back().get());
  }
  while (budget > 0 && Admit(now)) plan_rows(running_.back().get());
  LATENTD_CHECK(empty() || !plan.empty());
  return plan;
}

// Blocks for the sequence's next `rows` tokens, or for all of its tokens at once where no block is
// ever given back. Returns how many rows there are blocks for: 0 when the sequence itself had to
// give way.
int Scheduler::EnsureBlocks(Sequence* sequence, int rows) {
  const bool windowed = info_.sliding_window > 0;
  const int64_t end = windowed ? sequence->num_computed + rows : sequence->num_tokens();
  const auto missing = [&] {
    return std::max<int64_t>(0, BlocksFor(end) - static_cast<int64_t>(sequence->blocks.size()));
  };
  while (!pool_.Allocate(missing(), &sequence->blocks)) {
    if (windowed) {
      LATENTD_CHECK(pool_.Allocate(pool_.free(), &sequence->blocks));
      const int64_t end_of_blocks = static_cast<int64_t>(sequence->blocks.size()) * kBlockTokens;
      const auto room = static_cast<int>(end_of_blocks - sequence->num_computed);
      if (room > 0) {
        rows = std::min(rows, room);
        break;
      }
    }
    LATENTD_CHECK(running_.size() > 1);  // alone, it fits
    const bool gives_way = running_.back().get() == sequence;
    PreemptLatest();
    if (gives_way) return 0;
  }
  sequence->peak_blocks = std::max(sequence->peak_blocks, sequence->num_held());
  return rows;
}

// The latest arrival gives way: mostly it has computed least, and as the oldest never does, all
// come to an end.
void Scheduler::PreemptLatest() {
  std::unique_ptr<Sequence> sequence = std::move(running_.back());
  running_.pop_back();
  Leave(sequence.get());
  sequence->num_computed = 0;
  ++sequence->preemptions;
  ++counters_.preemptions;
  metrics_->OnPreempted();
  waiting_.push_front(std::move(sequence));
}

// Gives back all that the sequence holds.
void Scheduler::Leave(Sequence* sequence) {
  pool_.Release(&sequence->blocks);
  sequence->num_behind = 0;
  if (sequence->seat >= 0) free_seats_.push_back(std::exchange(sequence->seat, -1));
}

// Position n sees those above n - window, and the next token's is num_computed.
void Scheduler::GiveBackBehindWindow(Sequence* sequence) {
  if (info_.sliding_window == 0) return;
  const int first_seen = std::max(0, sequence->num_computed - info_.sliding_window + 1);
  for (; sequence->num_behind < first_seen / kBlockTokens; ++sequence->num_behind) {
    pool_.Release(std::exchange(sequence->blocks[sequence->num_behind], -1));
  }
}

// Blocks beyond those that it holds to keep for the sequence: for its present tokens, and for its
// growth, going by what others used of their limits; of that half, as sequences of different age
// grow into each other's blocks (measured: a fifth fewer steps than the whole for a mixed load in a
// tight pool, and still little is computed twice). Its last token is never computed.
int64_t Scheduler::WantedBlocks(const Sequence& sequence) const {
  const int64_t last = int64_t{sequence.num_prompt_tokens()} + sequence.request->max_new_tokens - 1;
  const int64_t now = MostBlocksFor(sequence.num_tokens(), info_.sliding_window);
  const int64_t growth = MostBlocksFor(last, info_.sliding_window) - now;
  return std::max<int64_t>(0, now - sequence.num_held()) +
         static_cast<int64_t>(std::ceil(used_share_ / 2 * static_cast<double>(growth)));
}

// Moves the first waiting sequence to the running ones if there is a seat, and blocks for all its
// tokens and for the growth that is expected of all: else they would soon preempt it, and what it
// computed would be lost.
bool Scheduler::Admit(absl::Time now) {
  if (waiting_.empty() || free_seats_.empty()) return false;
  Sequence* sequence = waiting_.front().get();
  if (!running_.empty()) {
    int64_t wanted = WantedBlocks(*sequence);
    for (const auto& other : running_) wanted += WantedBlocks(*other);
    if (wanted > pool_.free()) return false;
  }
  running_.push_back(std::move(waiting_.front()));
  waiting_.pop_front();
  sequence->seat = free_seats_.back();
  free_seats_.pop_back();
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
    GiveBackBehindWindow(sequence);
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
  Leave(sequence.get());
  const absl::Time scheduled = std::min(sequence->first_scheduled, now);
  const absl::Time first_token = std::min(sequence->first_token, now);
  const int seats = sequence->peak_blocks > 0 ? 1 : 0;
  const auto peak_tokens = static_cast<double>(sequence->peak_blocks * kBlockTokens);
  FinishInfo info{
      .reason = reason,
      .status = status,
      .prompt_tokens = sequence->num_prompt_tokens(),
      .generated_tokens = sequence->num_generated(),
      .preemptions = sequence->preemptions,
      .cache_bytes = BytesOf(sequence->peak_blocks, seats),
      .full_cache_bytes = std::llround(peak_tokens * info_.full_bytes_per_token),
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
  stats.cache_bytes_used = BytesOf(pool_.used(), stats.running);
  return stats;
}

void Scheduler::CheckInvariants() const {
  std::vector<bool> block_taken(pool_.total(), false), seat_taken(config_.max_sequences, false);
  int64_t held = 0;
  for (const int32_t seat : free_seats_) {
    LATENTD_CHECK(!seat_taken[seat]);
    seat_taken[seat] = true;
  }
  for (const auto& sequence : running_) {
    LATENTD_CHECK(sequence->seat >= 0 && !seat_taken[sequence->seat]);
    seat_taken[sequence->seat] = true;
    const int behind = info_.sliding_window == 0
                           ? 0
                           : std::max(0, sequence->num_computed - info_.sliding_window + 1);
    LATENTD_CHECK(sequence->num_behind == behind / kBlockTokens);
    for (size_t i = 0; i < sequence->blocks.size(); ++i) {
      const int32_t block = sequence->blocks[i];
      LATENTD_CHECK((block == -1) == (static_cast<int64_t>(i) < sequence->num_behind));
      if (block == -1) continue;
      LATENTD_CHECK(!block_taken[block]);
      block_taken[block] = true;
      ++held;
    }
    LATENTD_CHECK(static_cast<int64_t>(sequence->blocks.size()) >=
                  BlocksFor(sequence->num_computed));
    LATENTD_CHECK(sequence->num_pending() > 0);
  }
  LATENTD_CHECK(held == pool_.used());
  LATENTD_CHECK(absl::c_all_of(seat_taken, [](bool taken) { return taken; }));
  for (const auto& sequence : waiting_) {
    LATENTD_CHECK(sequence->blocks.empty() && sequence->seat == -1 && sequence->num_computed == 0);
  }
  std::vector<const Sequence*> all;
  for (const auto& sequence : running_) all.push_back(sequence.get());
  for (const auto& sequence : waiting_) all.push_back(sequence.get());
  LATENTD_CHECK(std::is_sorted(all.begin(), all.end(), [](const auto* a, const auto* b) {
    return a->arrival_number < b->arrival_number;
  }));
}

}  // namespace latentd
