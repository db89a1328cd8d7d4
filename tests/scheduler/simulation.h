#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <prometheus/registry.h>

#include "base/random.h"
#include "scheduler/batch_builder.h"
#include "scheduler/scheduler.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/fake_engine.h"
#include "tests/testing/recording_sink.h"

namespace latentd {

// A request with a sink that the test reads.
struct TestRequest {
  std::shared_ptr<Request> request = std::make_shared<Request>();
  std::shared_ptr<RecordingSink> sink = std::make_shared<RecordingSink>();

  TestRequest(std::string id, int prompt_tokens, int max_new_tokens, uint64_t seed = 1) {
    request->id = std::move(id);
    for (int i = 0; i < prompt_tokens; ++i) {
      request->prompt.push_back(static_cast<int32_t>(RandomBits(seed, i) % 1000));
    }
    request->max_new_tokens = max_new_tokens;
    request->sampling.seed = seed;
    request->sink = sink;
  }
  std::vector<int32_t> expected(int sliding_window = 0) const {
    return FakeEngine::Expected(*request, 1000, sliding_window);
  }
};

// The serve loop's rounds, one call each and on the test's own thread, with the invariants checked
// after each.
class Simulation {
 public:
  Simulation(const SchedulerConfig& config, FakeEngine::Options options)
      : engine_(std::move(options)), scheduler_(config, engine_.info(), &metrics_) {}

  void Add(const TestRequest& test) {
    test.request->arrival = clock_.Now();
    scheduler_.Add(test.request);
  }

  // One step; false when there is no work. The clock moves on by `duration` while it runs.
  bool Step(absl::Duration duration = absl::Milliseconds(1)) {
    scheduler_.Expire(clock_.Now());
    Deliver();
    if (scheduler_.empty()) return false;
    last_plan_ = scheduler_.Schedule(clock_.Now());
    scheduler_.CheckInvariants();
    last_batch_ = BuildBatch(last_plan_);
    absl::StatusOr<StepOutput> output = engine_.Step(last_batch_);
    if (!output.ok()) ADD_FAILURE() << output.status();
    clock_.Advance(duration);
    if (!output.ok()) return false;
    scheduler_.Commit(last_plan_, *output, clock_.Now());
    scheduler_.CheckInvariants();
    Deliver();
    return true;
  }
  void Run() {
    while (Step()) {
    }
  }
  void Deliver() {
    for (const FinishedRequest& over : scheduler_.TakeFinished()) {
      over.request->sink->OnFinish(over.info);
    }
  }

  void ExpectIdle() const {
    EXPECT_TRUE(scheduler_.empty());
    EXPECT_EQ(scheduler_.stats().running, 0);
    EXPECT_EQ(scheduler_.stats().waiting, 0);
    EXPECT_EQ(scheduler_.stats().blocks_used, 0);
    EXPECT_EQ(scheduler_.waiting_tokens(), 0);
  }

  Scheduler& scheduler() { return scheduler_; }
  FakeClock& clock() { return clock_; }
  const prometheus::Registry& registry() const { return registry_; }
  const Batch& last_batch() const { return last_batch_; }

 private:
  prometheus::Registry registry_;
  SchedulerMetrics metrics_{registry_};
  FakeClock clock_;
  FakeEngine engine_;
  Scheduler scheduler_;
  StepPlan last_plan_;
  Batch last_batch_;
};

}  // namespace latentd
