#include "scheduler/metrics.h"

#include <prometheus/counter.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <map>
#include <string>

#include "scheduler/serve_stats.h"

namespace latentd {
namespace {

using prometheus::Counter;
using prometheus::Family;
using prometheus::Gauge;
using prometheus::Histogram;
using Buckets = Histogram::BucketBoundaries;

const Buckets kSeconds = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05,
                          0.1,    0.25,    0.5,    1.0,   2.5,    5.0,   10.0, 30.0,  60.0};
const Buckets kTokens = {1,   2,    4,    8,    16,   32,    64,    128,   256,
                         512, 1024, 2048, 4096, 8192, 16384, 32768, 65536, 131072};
const Buckets kSequences = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512};

Family<Counter>& Counters(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildCounter().Name(name).Help(help).Register(registry);
}
Family<Gauge>& Gauges(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildGauge().Name(name).Help(help).Register(registry);
}
Family<Histogram>& Histograms(prometheus::Registry& registry, const char* name, const char* help) {
  return prometheus::BuildHistogram().Name(name).Help(help).Register(registry);
}
Histogram& OneHistogram(prometheus::Registry& registry, const char* name, const char* help,
                        const Buckets& buckets = kSeconds) {
  return Histograms(registry, name, help).Add({}, buckets);
}

void Observe(Histogram& histogram, absl::Duration duration) {
  histogram.Observe(absl::ToDoubleSeconds(duration));
}

// One counter for each value of an enum with the values 0 .. count - 1, so that a scrape shows
// zeros from the start.
template <typename Enum>
std::vector<Counter*> PerValue(Family<Counter>& family, const char* label, int count) {
  std::vector<Counter*> counters;
  counters.reserve(count);
  for (int i = 0; i < count; ++i) {
    counters.push_back(&family.Add({{label, Name(static_cast<Enum>(i))}}));
  }
  return counters;
}

// What the rows of a step were: prompt, output, or both.
enum class StepKind : uint8_t { kPrefill, kDecode, kMixed };
constexpr int kNumStepKinds = 3;
const char* Name(StepKind kind) {
  switch (kind) {
    case StepKind::kPrefill:
      return "prefill";
    case StepKind::kDecode:
      return "decode";
    case StepKind::kMixed:
      return "mixed";
  }
  return "unknown";
}

StepKind KindOf(const SchedulerMetrics::Step& step) {
  if (step.rows == step.sequences && step.prompt_rows + step.recomputed_rows == 0) {
    return StepKind::kDecode;
  }
  return step.prompt_rows + step.recomputed_rows == step.rows ? StepKind::kPrefill
                                                              : StepKind::kMixed;
}

}  // namespace

const char* Name(RequestPhase phase) {
  switch (phase) {
    case RequestPhase::kQueue:
      return "queue";
    case RequestPhase::kPrefill:
      return "prefill";
    case RequestPhase::kDecode:
      return "decode";
  }
  return "unknown";
}

struct SchedulerMetrics::Families {
  explicit Families(prometheus::Registry& registry);

  Gauge& requests_running;
  Gauge& requests_waiting;
  Family<Gauge>& kv_blocks;
  Gauge& kv_blocks_used;
  Gauge& kv_blocks_free;
  Gauge& kv_usage_ratio;
  Family<Gauge>& kv_seats;
  Gauge& kv_seats_used;
  Gauge& kv_seats_free;
  Gauge& engine_state;
  Gauge& last_step;

  Family<Counter>& requests;
  std::vector<Counter*> cancelled;  // by RequestPhase
  std::vector<Counter*> expired;    // by RequestPhase
  Family<Counter>& prompt_tokens;
  Counter& computed_tokens;
  Counter& recomputed_tokens;
  Counter& generation_tokens;
  Counter& preemptions;
  std::vector<Counter*> steps;  // by StepKind

  Histogram& ttft;
  Histogram& itl;
  Histogram& tpot;
  Histogram& e2e;
  Histogram& queue;
  Histogram& prefill;
  Histogram& decode;
  Histogram& cancel_to_free;
  std::vector<Histogram*> step_seconds;  // by StepKind
  Histogram& batch_size;
  Histogram& batch_tokens;
  Histogram& request_prompt_tokens;
  Histogram& request_generation_tokens;
};

SchedulerMetrics::Families::Families(prometheus::Registry& r)
    : requests_running(
          Gauges(r, "latentd_requests_running", "Sequences that hold cache blocks").Add({})),
      requests_waiting(
          Gauges(r, "latentd_requests_waiting", "Sequences that wait for a place").Add({})),
      kv_blocks(Gauges(r, "latentd_kv_blocks", "Cache blocks by state")),
      kv_blocks_used(kv_blocks.Add({{"state", "used"}})),
      kv_blocks_free(kv_blocks.Add({{"state", "free"}})),
      kv_usage_ratio(Gauges(r, "latentd_kv_usage_ratio", "Used share of the cache blocks").Add({})),
      kv_seats(Gauges(r, "latentd_kv_seats",
                      "Places for what a sequence keeps beside its cache blocks, by state")),
      kv_seats_used(kv_seats.Add({{"state", "used"}})),
      kv_seats_free(kv_seats.Add({{"state", "free"}})),
      engine_state(
          Gauges(r, "latentd_engine_state", "1 while the engine works, 0 once it is dead").Add({})),
      last_step(Gauges(r, "latentd_engine_last_step_timestamp_seconds",
                       "End of the latest step, or when work last reached an idle engine")
                    .Add({})),
      requests(Counters(r, "latentd_sequences_finished_total",
                        "Accepted requests that ended, by code and reason")),
      cancelled(PerValue<RequestPhase>(Counters(r, "latentd_requests_cancelled_total",
                                                "Cancelled requests by how far they came"),
                                       "phase", 3)),
      expired(PerValue<RequestPhase>(Counters(r, "latentd_deadline_exceeded_total",
                                              "Requests past their deadline by how far they came"),
                                     "phase", 3)),
      prompt_tokens(Counters(r, "latentd_prompt_tokens_total",
                             "Prompt tokens computed, and any computed again")),
      computed_tokens(prompt_tokens.Add({{"source", "computed"}})),
      recomputed_tokens(prompt_tokens.Add({{"source", "recomputed"}})),
      generation_tokens(Counters(r, "latentd_generation_tokens_total", "Drawn tokens").Add({})),
      preemptions(
          Counters(r, "latentd_preemptions_total", "Sequences that gave their blocks to others")
              .Add({})),
      steps(PerValue<StepKind>(
          Counters(r, "latentd_engine_steps_total", "Engine steps by the kind of rows"), "kind",
          kNumStepKinds)),
      ttft(OneHistogram(r, "latentd_ttft_seconds", "Arrival to first token")),
      itl(OneHistogram(r, "latentd_itl_seconds", "Token to next token")),
      tpot(OneHistogram(r, "latentd_tpot_seconds",
                        "Mean time per token after the first, per request")),
      e2e(OneHistogram(r, "latentd_e2e_seconds", "Arrival to end")),
      queue(OneHistogram(r, "latentd_queue_seconds", "Arrival to first scheduled")),
      prefill(OneHistogram(r, "latentd_prefill_seconds", "First scheduled to first token")),
      decode(OneHistogram(r, "latentd_decode_seconds", "First token to last")),
      cancel_to_free(
          OneHistogram(r, "latentd_cancel_to_free_seconds",
                       "End asked for (the client left, a stop string was found) to blocks free")),
      batch_size(OneHistogram(r, "latentd_batch_size", "Sequences in a step", kSequences)),
      batch_tokens(OneHistogram(r, "latentd_batch_tokens", "Token rows of a step", kTokens)),
      request_prompt_tokens(OneHistogram(r, "latentd_request_prompt_tokens",
                                         "Prompt tokens of an ended request", kTokens)),
      request_generation_tokens(OneHistogram(r, "latentd_request_generation_tokens",
                                             "Drawn tokens of an ended request", kTokens)) {
  Family<Histogram>& family =
      Histograms(r, "latentd_step_seconds", "Scheduling to tokens of one step");
  for (int kind = 0; kind < kNumStepKinds; ++kind) {
    step_seconds.push_back(&family.Add({{"kind", Name(static_cast<StepKind>(kind))}}, kSeconds));
  }
}

SchedulerMetrics::SchedulerMetrics(prometheus::Registry& registry)
    : families_(std::make_unique<Families>(registry)) {}
SchedulerMetrics::~SchedulerMetrics() = default;

void SchedulerMetrics::OnFirstScheduled(absl::Duration queue_time) {
  Observe(families_->queue, queue_time);
}

void SchedulerMetrics::OnFirstToken(absl::Duration since_arrival) {
  families_->generation_tokens.Increment();
  Observe(families_->ttft, since_arrival);
}

void SchedulerMetrics::OnNextToken(absl::Duration since_previous) {
  families_->generation_tokens.Increment();
  Observe(families_->itl, since_previous);
}

void SchedulerMetrics::OnPreempted() { families_->preemptions.Increment(); }

void SchedulerMetrics::OnCancelFreed(absl::Duration since_cancel) {
  Observe(families_->cancel_to_free, since_cancel);
}

void SchedulerMetrics::OnStep(const Step& step) {
  const int kind = static_cast<int>(KindOf(step));
  families_->steps[kind]->Increment();
  Observe(*families_->step_seconds[kind], step.duration);
  families_->batch_size.Observe(step.sequences);
  families_->batch_tokens.Observe(step.rows);
  families_->computed_tokens.Increment(step.prompt_rows);
  families_->recomputed_tokens.Increment(step.recomputed_rows);
}

void SchedulerMetrics::OnFinished(const FinishInfo& info, RequestPhase phase,
                                  absl::Duration since_arrival) {
  families_->requests
      .Add({{"code", absl::StatusCodeToString(CodeOf(info))}, {"reason", Name(info.reason)}})
      .Increment();
  const int p = static_cast<int>(phase);
  if (info.reason == FinishReason::kCancelled) families_->cancelled[p]->Increment();
  if (info.reason == FinishReason::kDeadline) families_->expired[p]->Increment();
  Observe(families_->e2e, since_arrival);
  families_->request_prompt_tokens.Observe(info.prompt_tokens);
  families_->request_generation_tokens.Observe(info.generated_tokens);
  if (phase != RequestPhase::kDecode) return;
  Observe(families_->prefill, info.prefill_time);
  Observe(families_->decode, info.decode_time);
  if (info.generated_tokens > 1) {
    Observe(families_->tpot, info.decode_time / (info.generated_tokens - 1));
  }
}

void SchedulerMetrics::Publish(const ServeStats& stats) {
  families_->requests_running.Set(stats.running);
  families_->requests_waiting.Set(stats.waiting);
  families_->kv_blocks_used.Set(static_cast<double>(stats.blocks_used));
  families_->kv_blocks_free.Set(static_cast<double>(stats.blocks_total - stats.blocks_used));
  families_->kv_usage_ratio.Set(static_cast<double>(stats.blocks_used) /
                                static_cast<double>(stats.blocks_total));
  families_->kv_seats_used.Set(stats.running);
  families_->kv_seats_free.Set(static_cast<double>(stats.seats_total - stats.running));
  families_->engine_state.Set(stats.engine_status.ok() ? 1 : 0);
  families_->last_step.Set(absl::ToDoubleSeconds(stats.last_step - absl::UnixEpoch()));
}

}  // namespace latentd
