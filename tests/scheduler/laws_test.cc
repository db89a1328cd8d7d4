// The scheduler's part of whole == chunked == preempted and resumed == batched: whatever the
// limits, the pool and the company, a request gets the tokens that it would get alone.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "base/random.h"
#include "tests/scheduler/simulation.h"

namespace latentd {
namespace {

// Numbers that depend on the seed alone.
class Dice {
 public:
  explicit Dice(uint64_t seed) : seed_(seed) {}
  int Roll(int low, int high) {
    return low + static_cast<int>(RandomBits(seed_, counter_++) % (high - low + 1));
  }
  bool OneIn(int n) { return Roll(1, n) == 1; }

 private:
  const uint64_t seed_;
  uint64_t counter_ = 0;
};

constexpr int kLongest = 6 * 64;  // cached tokens of the longest request: 6 blocks

TestRequest RandomRequest(int number, Dice* dice) {
  const int prompt = dice->OneIn(5) ? 64 * dice->Roll(1, 3) : dice->Roll(1, 180);
  const int output = dice->Roll(1, std::min(350, kLongest + 1 - prompt));
  TestRequest test("r" + std::to_string(number), prompt, output, dice->Roll(0, 1 << 20));
  Request& request = *test.request;
  if (dice->OneIn(3)) request.sampling.temperature = 0.0f;
  if (dice->OneIn(3)) request.sampling.repetition_penalty = 1.1f;
  for (int i = dice->OneIn(5) ? 0 : 40; i > 0; --i) {
    request.stop_token_ids.push_back(dice->Roll(0, 999));
  }
  if (dice->OneIn(5)) request.min_new_tokens = dice->Roll(0, output);
  return test;
}

struct Limits {
  int max_batch_tokens;
  int max_sequences;
  int64_t num_blocks;
  int sliding_window = 0;
};

class SchedulerLawsTest : public ::testing::TestWithParam<Limits> {
 protected:
  std::unique_ptr<Simulation> MakeSimulation() const {
    const Limits& limits = GetParam();
    return std::make_unique<Simulation>(
        SchedulerConfig{.max_batch_tokens = limits.max_batch_tokens,
                        .max_sequences = limits.max_sequences},
        FakeEngine::Options{.num_blocks = limits.num_blocks,
                            .num_sequences = limits.max_sequences,
                            .sliding_window = limits.sliding_window});
  }
  static std::vector<int32_t> Expected(const TestRequest& test) {
    return test.expected(GetParam().sliding_window);
  }
};

TEST_P(SchedulerLawsTest, EveryRequestGetsItsOwnTokens) {
  Dice dice(42);
  auto sim = MakeSimulation();
  std::vector<TestRequest> requests;
  for (int i = 0; i < 120; ++i) {
    requests.push_back(RandomRequest(i, &dice));
    sim->Add(requests.back());
    for (int steps = dice.Roll(0, 8); steps > 0; --steps) sim->Step();
  }
  sim->Run();
  int64_t generated = 0;
  for (const TestRequest& r : requests) {
    EXPECT_EQ(r.sink->tokens(), Expected(r)) << r.request->id;
    generated += static_cast<int64_t>(r.sink->tokens().size());
  }
  sim->ExpectIdle();
  EXPECT_EQ(sim->scheduler().stats().generated_tokens, generated);
}

TEST_P(SchedulerLawsTest, CancelsAndDeadlinesHarmNobodyElse) {
  Dice dice(7);
  auto sim = MakeSimulation();
  std::vector<TestRequest> requests;
  for (int i = 0; i < 200; ++i) {
    requests.push_back(RandomRequest(i, &dice));
    if (dice.OneIn(4)) {
      requests.back().request->deadline =
          sim->clock().Now() + absl::Milliseconds(dice.Roll(0, 120));
    }
    sim->Add(requests.back());
    for (int steps = dice.Roll(0, 6); steps > 0; --steps) {
      if (dice.OneIn(3)) {
        sim->scheduler().Cancel("r" + std::to_string(dice.Roll(std::max(0, i - 20), i + 2)),
                                FinishReason::kCancelled, sim->clock().Now());
        sim->scheduler().CheckInvariants();
      }
      sim->Step();
    }
  }
  sim->Run();
  int whole = 0, cut = 0;
  int64_t by_reason[5] = {};
  for (const TestRequest& r : requests) {
    const FinishInfo info = *r.sink->finish();
    const std::vector<int32_t> tokens = r.sink->tokens(), expected = Expected(r);
    ++by_reason[static_cast<int>(info.reason)];
    EXPECT_EQ(info.generated_tokens, static_cast<int>(tokens.size()));
    if (info.reason == FinishReason::kStop || info.reason == FinishReason::kLength) {
      EXPECT_EQ(tokens, expected) << r.request->id;
      ++whole;
    } else {
      ASSERT_NE(info.reason, FinishReason::kError) << info.status;
      ASSERT_LE(tokens.size(), expected.size());
      EXPECT_TRUE(std::equal(tokens.begin(), tokens.end(), expected.begin())) << r.request->id;
      ++cut;
    }
  }
  EXPECT_GT(cut, 20);
  EXPECT_GT(whole, 5);
  sim->ExpectIdle();
  const ServeStats stats = sim->scheduler().stats();
  for (int reason = 0; reason < 5; ++reason) {
    EXPECT_EQ(stats.requests_finished[reason], by_reason[reason]);
  }
}

// Short answers make the scheduler let many in; then come those that use all that they asked for.
TEST(SchedulerPreemptionLawTest, PreemptedAndResumedEqualsAlone) {
  for (const Limits& limits : {Limits{512, 64, 12}, Limits{512, 64, 40}, Limits{17, 16, 20},
                               Limits{3, 8, 12}, Limits{2, 64, 10}}) {
    Simulation sim(SchedulerConfig{.max_batch_tokens = limits.max_batch_tokens,
                                   .max_sequences = limits.max_sequences},
                   FakeEngine::Options{.num_blocks = limits.num_blocks});
    std::vector<TestRequest> requests;
    for (int i = 0; i < 30; ++i) {
      requests.emplace_back("short" + std::to_string(i), 5, kLongest - 5, i);
      requests.back().request->stop_token_ids = {requests.back().expected()[0]};
    }
    for (int i = 0; i < 30; ++i) {
      requests.emplace_back("long" + std::to_string(i), 20 + i, kLongest - 60 - i, i);
    }
    for (const TestRequest& r : requests) sim.Add(r);
    sim.Run();
    for (const TestRequest& r : requests) EXPECT_EQ(r.sink->tokens(), r.expected());
    EXPECT_GT(sim.scheduler().stats().preemptions, 1) << limits.max_batch_tokens;
    sim.ExpectIdle();
  }
}

INSTANTIATE_TEST_SUITE_P(
    Limits, SchedulerLawsTest,
    ::testing::Values(Limits{512, 64, 1000}, Limits{512, 64, 6}, Limits{512, 64, 10},
                      Limits{512, 64, 17}, Limits{512, 1, 6}, Limits{17, 64, 1000},
                      Limits{17, 8, 12}, Limits{3, 64, 1000}, Limits{3, 64, 9}, Limits{1, 64, 6},
                      Limits{1, 2, 30}, Limits{512, 64, 1000, 100}, Limits{512, 64, 3, 100},
                      Limits{512, 64, 3, 65}, Limits{512, 64, 1, 1}, Limits{17, 8, 7, 100},
                      Limits{3, 64, 9, 40}, Limits{100, 16, 12, 100}, Limits{1, 64, 4, 129},
                      Limits{512, 3, 6, 1000}),
    [](const auto& info) {
      return "Rows" + std::to_string(info.param.max_batch_tokens) + "Sequences" +
             std::to_string(info.param.max_sequences) + "Blocks" +
             std::to_string(info.param.num_blocks) + "Window" +
             std::to_string(info.param.sliding_window);
    });

}  // namespace
}  // namespace latentd
