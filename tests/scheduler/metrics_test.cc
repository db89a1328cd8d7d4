#include "scheduler/metrics.h"

#include <gtest/gtest.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include <string>

#include "scheduler/serve_stats.h"
#include "tests/scheduler/simulation.h"

namespace latentd {
namespace {

// The value on the line of the scrape that starts with `series` and a space; -1 when there is none.
double Value(const prometheus::Registry& registry, const std::string& series) {
  const std::string page = prometheus::TextSerializer().Serialize(registry.Collect());
  const size_t at = page.find("\n" + series + " ");
  if (at == std::string::npos) return -1;
  return std::stod(page.substr(at + series.size() + 2));
}

class MetricsTest : public ::testing::Test {
 protected:
  double Of(const std::string& series) const { return Value(registry_, "latentd_" + series); }

  prometheus::Registry registry_;
  SchedulerMetrics metrics_{registry_};
};

TEST_F(MetricsTest, SeriesAreThereFromTheStart) {
  for (const char* series : {"requests_running",
                             "requests_waiting",
                             "kv_blocks{state=\"used\"}",
                             "kv_blocks{state=\"free\"}",
                             "kv_usage_ratio",
                             "kv_seats{state=\"used\"}",
                             "kv_seats{state=\"free\"}",
                             "engine_state",
                             "requests_cancelled_total{phase=\"queue\"}",
                             "deadline_exceeded_total{phase=\"prefill\"}",
                             "prompt_tokens_total{source=\"computed\"}",
                             "prompt_tokens_total{source=\"recomputed\"}",
                             "generation_tokens_total",
                             "preemptions_total",
                             "engine_steps_total{kind=\"mixed\"}",
                             "ttft_seconds_count",
                             "itl_seconds_count",
                             "tpot_seconds_count",
                             "e2e_seconds_count",
                             "queue_seconds_count",
                             "prefill_seconds_count",
                             "decode_seconds_count",
                             "step_seconds_count{kind=\"decode\"}",
                             "cancel_to_free_seconds_count",
                             "batch_size_count",
                             "batch_tokens_count",
                             "request_prompt_tokens_count",
                             "request_generation_tokens_count"}) {
    EXPECT_EQ(Of(series), 0) << series;
  }
}

TEST_F(MetricsTest, GaugesFollowTheStats) {
  metrics_.Publish({.running = 3,
                    .waiting = 5,
                    .blocks_used = 30,
                    .blocks_total = 40,
                    .seats_total = 8,
                    .last_step = absl::FromUnixSeconds(1700)});
  EXPECT_EQ(Of("requests_running"), 3);
  EXPECT_EQ(Of("requests_waiting"), 5);
  EXPECT_EQ(Of("kv_blocks{state=\"used\"}"), 30);
  EXPECT_EQ(Of("kv_blocks{state=\"free\"}"), 10);
  EXPECT_EQ(Of("kv_usage_ratio"), 0.75);
  EXPECT_EQ(Of("kv_seats{state=\"used\"}"), 3);
  EXPECT_EQ(Of("kv_seats{state=\"free\"}"), 5);
  EXPECT_EQ(Of("engine_state"), 1);
  EXPECT_EQ(Of("engine_last_step_timestamp_seconds"), 1700);
  metrics_.Publish({.blocks_total = 40, .engine_status = absl::UnavailableError("dead")});
  EXPECT_EQ(Of("engine_state"), 0);
}

TEST_F(MetricsTest, ARequestCountsOnceByCodeAndReason) {
  metrics_.OnFinished({.reason = FinishReason::kStop, .generated_tokens = 3}, RequestPhase::kDecode,
                      absl::Seconds(1));
  metrics_.OnFinished({.reason = FinishReason::kCancelled}, RequestPhase::kQueue, absl::Seconds(1));
  metrics_.OnFinished({.reason = FinishReason::kDeadline}, RequestPhase::kPrefill,
                      absl::Seconds(1));
  metrics_.OnFinished({.reason = FinishReason::kError, .status = absl::InternalError("x")},
                      RequestPhase::kDecode, absl::Seconds(1));
  EXPECT_EQ(Of("sequences_finished_total{code=\"OK\",reason=\"stop\"}"), 1);
  EXPECT_EQ(Of("sequences_finished_total{code=\"CANCELLED\",reason=\"cancelled\"}"), 1);
  EXPECT_EQ(Of("sequences_finished_total{code=\"DEADLINE_EXCEEDED\",reason=\"deadline\"}"), 1);
  EXPECT_EQ(Of("sequences_finished_total{code=\"INTERNAL\",reason=\"error\"}"), 1);
  EXPECT_EQ(Of("requests_cancelled_total{phase=\"queue\"}"), 1);
  EXPECT_EQ(Of("deadline_exceeded_total{phase=\"prefill\"}"), 1);
  EXPECT_EQ(Of("e2e_seconds_count"), 4);
  EXPECT_EQ(Of("tpot_seconds_count"), 1);
}

TEST_F(MetricsTest, StepsAreOfTheKindOfTheirRows) {
  metrics_.OnStep({.sequences = 4, .sampled = 4, .rows = 4});
  metrics_.OnStep(
      {.sequences = 2, .sampled = 0, .rows = 100, .prompt_rows = 90, .recomputed_rows = 10});
  metrics_.OnStep({.sequences = 2, .sampled = 1, .rows = 51, .prompt_rows = 50});
  EXPECT_EQ(Of("engine_steps_total{kind=\"decode\"}"), 1);
  EXPECT_EQ(Of("engine_steps_total{kind=\"prefill\"}"), 1);
  EXPECT_EQ(Of("engine_steps_total{kind=\"mixed\"}"), 1);
  EXPECT_EQ(Of("prompt_tokens_total{source=\"computed\"}"), 140);
  EXPECT_EQ(Of("prompt_tokens_total{source=\"recomputed\"}"), 10);
  EXPECT_EQ(Of("batch_tokens_sum"), 155);
  EXPECT_EQ(Of("batch_size_sum"), 8);
}

// The scheduler reports each event: the counters of a run under pressure equal what the requests
// were told.
TEST(SchedulerMetricsTest, CountersEqualWhatTheSinksHeard) {
  Simulation sim({}, {.num_blocks = 7});
  std::vector<TestRequest> requests;
  for (int i = 0; i < 6; ++i) requests.emplace_back(std::to_string(i), 100, 100, i);
  for (const TestRequest& r : requests) sim.Add(r);
  while (sim.scheduler().stats().preemptions == 0 && sim.Step()) {
  }
  sim.scheduler().Cancel("0", FinishReason::kCancelled, sim.clock().Now());
  sim.scheduler().Cancel("5", FinishReason::kCancelled, sim.clock().Now());
  sim.Run();
  double generated = 0, preemptions = 0, first_tokens = 0;
  for (const TestRequest& r : requests) {
    generated += r.sink->finish()->generated_tokens;
    preemptions += r.sink->finish()->preemptions;
    first_tokens += r.sink->tokens().empty() ? 0 : 1;
  }
  auto of = [&](const std::string& series) { return Value(sim.registry(), "latentd_" + series); };
  EXPECT_GT(preemptions, 0);
  EXPECT_EQ(of("generation_tokens_total"), generated);
  EXPECT_EQ(of("preemptions_total"), preemptions);
  EXPECT_EQ(of("sequences_finished_total{code=\"OK\",reason=\"length\"}"), 4);
  EXPECT_EQ(of("requests_cancelled_total{phase=\"decode\"}"), 1);
  EXPECT_EQ(of("requests_cancelled_total{phase=\"queue\"}"), 1);
  EXPECT_EQ(of("ttft_seconds_count"), first_tokens);
  EXPECT_EQ(of("itl_seconds_count"), generated - first_tokens);
  EXPECT_EQ(of("queue_seconds_count"), first_tokens);
  EXPECT_EQ(of("prompt_tokens_total{source=\"computed\"}"), 500);
  EXPECT_EQ(of("prompt_tokens_total{source=\"recomputed\"}"),
            sim.scheduler().stats().recomputed_tokens);
  EXPECT_GT(of("prompt_tokens_total{source=\"recomputed\"}"), 0);
}

}  // namespace
}  // namespace latentd
