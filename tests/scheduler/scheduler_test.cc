#include "scheduler/scheduler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/scheduler/simulation.h"

namespace latentd {
namespace {

using ::testing::ElementsAre;
using ::testing::ElementsAreArray;
using ::testing::IsEmpty;

TEST(SchedulerTest, DecodesFirstThenChunksInOrderOfArrival) {
  Simulation sim({.max_batch_tokens = 10}, {});
  TestRequest a("a", 4, 20), b("b", 15, 5), c("c", 3, 5);
  sim.Add(a);
  sim.Step();  // a is whole: 4 of 10 rows
  EXPECT_THAT(sim.last_batch().cu_q_lens, ElementsAre(0, 4));
  sim.Add(b);
  sim.Add(c);
  sim.Step();  // a decodes, b gets the rest, c nothing
  EXPECT_THAT(sim.last_batch().cu_q_lens, ElementsAre(0, 1, 10));
  EXPECT_EQ(sim.scheduler().stats().waiting, 1);
  sim.Step();  // b's last 6, and c
  EXPECT_THAT(sim.last_batch().cu_q_lens, ElementsAre(0, 1, 7, 10));
  EXPECT_EQ(sim.last_batch().samples.size(), 3u);
  sim.Run();
  EXPECT_EQ(a.sink->tokens(), a.expected());
  EXPECT_EQ(b.sink->tokens(), b.expected());
  EXPECT_EQ(c.sink->tokens(), c.expected());
  sim.ExpectIdle();
}

TEST(SchedulerTest, NoMoreSequencesThanAllowedRun) {
  Simulation sim({.max_sequences = 2}, {});
  TestRequest a("a", 4, 3), b("b", 4, 9), c("c", 4, 3);
  for (const TestRequest* r : {&a, &b, &c}) sim.Add(*r);
  for (int step = 0; step < 3; ++step) {
    sim.Step();
    EXPECT_EQ(sim.last_batch().num_sequences(), 2);
  }
  sim.Step();  // a is over
  EXPECT_EQ(sim.last_batch().num_tokens(), 1 + 4);
  sim.Run();
  EXPECT_EQ(c.sink->tokens(), c.expected());
}

TEST(SchedulerTest, AStopIdEndsAndIsReported) {
  Simulation sim({}, {});
  TestRequest request("a", 4, 20);
  request.request->stop_token_ids = {request.expected()[6]};
  sim.Add(request);
  sim.Run();
  EXPECT_EQ(request.sink->tokens(), request.expected());
  EXPECT_LE(request.sink->tokens().size(), 7u);
  EXPECT_EQ(request.sink->finish()->reason, FinishReason::kStop);
  EXPECT_TRUE(request.sink->finish()->status.ok());
}

TEST(SchedulerTest, StopIdsWaitForTheMinimum) {
  Simulation sim({}, {});
  TestRequest request("a", 4, 20);
  const int32_t first = request.expected()[0];
  request.request->stop_token_ids = {first};
  request.request->min_new_tokens = 20;
  sim.Add(request);
  sim.Run();
  EXPECT_EQ(request.sink->tokens().size(), 20u);
  EXPECT_THAT(request.sink->tokens(), ::testing::Not(::testing::Contains(first)));
  EXPECT_EQ(request.sink->finish()->reason, FinishReason::kLength);
}

TEST(SchedulerTest, FinishInfoTellsTimesAndAmounts) {
  Simulation sim({.max_batch_tokens = 50, .max_sequences = 1}, {});
  TestRequest first("first", 10, 2), second("second", 100, 4);
  sim.Add(first);
  sim.Add(second);
  while (sim.Step(absl::Seconds(1))) {
  }
  const FinishInfo info = *second.sink->finish();
  EXPECT_EQ(info.reason, FinishReason::kLength);
  EXPECT_EQ(info.prompt_tokens, 100);
  EXPECT_EQ(info.generated_tokens, 4);
  EXPECT_EQ(info.cached_tokens, 0);
  EXPECT_EQ(info.preemptions, 0);
  EXPECT_EQ(info.cache_bytes, 2 * 128);
  EXPECT_EQ(info.queue_time, absl::Seconds(2));
  EXPECT_EQ(info.prefill_time, absl::Seconds(2));
  EXPECT_EQ(info.decode_time, absl::Seconds(3));
}

TEST(SchedulerTest, NanLogitsEndOneRequest) {
  Simulation sim({}, {.is_nan = [](const BatchSample& sample) {
                   return sample.params.seed == 13 && sample.position == 7;
                 }});
  TestRequest bad("bad", 4, 20, 13), good("good", 4, 20, 14);
  sim.Add(bad);
  sim.Add(good);
  sim.Run();
  EXPECT_EQ(bad.sink->finish()->reason, FinishReason::kError);
  EXPECT_EQ(bad.sink->finish()->status.code(), absl::StatusCode::kInternal);
  EXPECT_THAT(std::string(bad.sink->finish()->status.message()),
              ::testing::HasSubstr("position 7"));
  EXPECT_EQ(bad.sink->tokens().size(), 3u);
  EXPECT_EQ(good.sink->finish()->reason, FinishReason::kLength);
  EXPECT_EQ(good.sink->tokens(), good.expected());
  sim.ExpectIdle();
}

TEST(SchedulerTest, CancelInEveryState) {
  Simulation sim({.max_batch_tokens = 20, .max_sequences = 2}, {.num_blocks = 8});
  TestRequest decoding("decoding", 4, 50), prefilling("prefilling", 100, 50),
      queued("queued", 4, 5);
  for (const TestRequest* r : {&decoding, &prefilling, &queued}) sim.Add(*r);
  sim.Step();
  sim.Step();
  EXPECT_FALSE(sim.scheduler().Cancel("unknown", FinishReason::kCancelled, sim.clock().Now()));
  for (const TestRequest* r : {&queued, &prefilling, &decoding}) {
    EXPECT_TRUE(
        sim.scheduler().Cancel(r->request->id, FinishReason::kCancelled, sim.clock().Now()));
    sim.scheduler().CheckInvariants();
    EXPECT_FALSE(
        sim.scheduler().Cancel(r->request->id, FinishReason::kCancelled, sim.clock().Now()));
  }
  sim.ExpectIdle();
  sim.Deliver();
  for (const TestRequest* r : {&queued, &prefilling, &decoding}) {
    EXPECT_EQ(r->sink->finish()->reason, FinishReason::kCancelled);
  }
  EXPECT_EQ(decoding.sink->tokens().size(), 2u);
  EXPECT_THAT(prefilling.sink->tokens(), IsEmpty());
}

TEST(SchedulerTest, DeadlinesEndWorkInEveryState) {
  Simulation sim({.max_batch_tokens = 20, .max_sequences = 2}, {});
  TestRequest decoding("decoding", 4, 50), prefilling("prefilling", 100, 50),
      queued("queued", 4, 5);
  for (const TestRequest* r : {&decoding, &prefilling, &queued}) {
    r->request->deadline = sim.clock().Now() + absl::Milliseconds(3);
    sim.Add(*r);
  }
  TestRequest patient("patient", 4, 5);
  sim.Add(patient);
  for (int step = 0; step < 3; ++step) sim.Step();
  EXPECT_EQ(decoding.sink->finish(), std::nullopt);
  sim.Step();
  for (const TestRequest* r : {&queued, &prefilling, &decoding}) {
    EXPECT_EQ(r->sink->finish()->reason, FinishReason::kDeadline);
  }
  EXPECT_EQ(decoding.sink->tokens().size(), 3u);
  sim.Run();
  EXPECT_EQ(patient.sink->tokens(), patient.expected());
  sim.ExpectIdle();
}

TEST(SchedulerTest, ExpiredWorkNeverReachesPrefill) {
  Simulation sim({.max_sequences = 4}, {});
  std::vector<TestRequest> busy, late;
  for (int i = 0; i < 4; ++i) busy.emplace_back("busy" + std::to_string(i), 10, 300, i);
  for (int i = 0; i < 500; ++i) {
    late.emplace_back("late" + std::to_string(i), 10, 5, i);
    late.back().request->deadline = sim.clock().Now() + absl::Milliseconds(100);
  }
  for (const TestRequest& r : busy) sim.Add(r);
  for (const TestRequest& r : late) sim.Add(r);
  sim.Run();
  for (const TestRequest& r : late) {
    EXPECT_EQ(r.sink->finish()->reason, FinishReason::kDeadline);
    EXPECT_EQ(r.sink->finish()->queue_time, absl::Milliseconds(100));
  }
  EXPECT_EQ(sim.scheduler().stats().prompt_tokens, 4 * 10);
  for (const TestRequest& r : busy) EXPECT_EQ(r.sink->tokens(), r.expected());
}

// Each needs half of the pool, to the last slot of it; together they need four times as much as
// there is.
TEST(SchedulerTest, LongDecodesOverflowThePoolAndAllFinish) {
  Simulation sim({}, {.num_blocks = 16});
  std::vector<TestRequest> requests;
  for (int i = 0; i < 8; ++i) requests.emplace_back(std::to_string(i), 100, 8 * 64 + 1 - 100, i);
  for (const TestRequest& r : requests) sim.Add(r);
  sim.Run();
  for (const TestRequest& r : requests) {
    EXPECT_EQ(r.sink->finish()->reason, FinishReason::kLength);
    EXPECT_EQ(r.sink->tokens(), r.expected());
    EXPECT_EQ(r.sink->finish()->cache_bytes, 8 * 128);
  }
  EXPECT_EQ(requests[0].sink->finish()->preemptions, 0);
  EXPECT_GT(sim.scheduler().stats().preemptions, 0);
  sim.ExpectIdle();
}

TEST(SchedulerTest, AResumedSequenceGoesBeforeLaterArrivals) {
  Simulation sim({}, {.num_blocks = 5});
  TestRequest a("a", 120, 80), b("b", 60, 100), late("late", 60, 2);
  sim.Add(a);
  sim.Add(b);
  while (sim.scheduler().stats().preemptions == 0 && sim.Step()) {
  }
  const size_t before = b.sink->tokens().size();
  ASSERT_LT(before, 100u);
  sim.Add(late);
  late.sink->on_tokens = [&](absl::Span<const GeneratedToken>) {
    EXPECT_GT(b.sink->tokens().size(), before);
  };
  sim.Run();
  EXPECT_EQ(a.sink->finish()->preemptions, 0);
  EXPECT_EQ(b.sink->finish()->preemptions, 1);
  for (const TestRequest* r : {&a, &b, &late}) EXPECT_EQ(r->sink->tokens(), r->expected());
}

// How much of their limits requests use decides how many run at once.
TEST(SchedulerTest, ShortAnswersLetMoreRun) {
  auto most_running = [](bool stop_early) {
    Simulation sim({}, {.num_blocks = 40});
    std::vector<TestRequest> requests;
    for (int i = 0; i < 60; ++i) {
      requests.emplace_back(std::to_string(i), 30, 640, i);
      if (stop_early) requests.back().request->stop_token_ids = {requests.back().expected()[20]};
    }
    for (const TestRequest& r : requests) sim.Add(r);
    int most = 0;
    while (sim.Step()) most = std::max(most, sim.last_batch().num_sequences());
    return most;
  };
  EXPECT_LT(most_running(false), 10);
  EXPECT_GT(most_running(true), 15);
}

// Pools of 60 % and of 20 % of what all need at once: little is computed twice.
TEST(SchedulerTest, PressureDoesNotThrash) {
  constexpr int kRequests = 48, kBlocksEach = 6;
  auto recomputed_share = [](int64_t num_blocks) {
    Simulation sim({.max_batch_tokens = 256}, {.num_blocks = num_blocks});
    std::vector<TestRequest> requests;
    for (int i = 0; i < kRequests; ++i) requests.emplace_back(std::to_string(i), 150, 200, i);
    for (const TestRequest& r : requests) sim.Add(r);
    sim.Run();
    const ServeStats stats = sim.scheduler().stats();
    EXPECT_EQ(stats.generated_tokens, kRequests * 200);
    return static_cast<double>(stats.recomputed_tokens) /
           static_cast<double>(stats.prompt_tokens + stats.generated_tokens);
  };
  EXPECT_EQ(recomputed_share(kRequests * kBlocksEach), 0.0);
  const double at_60 = recomputed_share(kRequests * kBlocksEach * 6 / 10);
  const double at_20 = recomputed_share(kRequests * kBlocksEach * 2 / 10);
  RecordProperty("recomputed_share_at_60", std::to_string(at_60));
  RecordProperty("recomputed_share_at_20", std::to_string(at_20));
  EXPECT_GT(at_60, 0.0);
  EXPECT_LT(at_60, 0.2);
  EXPECT_LT(at_20, 0.2);
}

TEST(SchedulerTest, BlocksBehindTheWindowAreGivenBack) {
  constexpr int kWindow = 100;
  Simulation sim({.max_batch_tokens = 64}, {.num_blocks = 20, .sliding_window = kWindow});
  TestRequest request("a", 500, 200);
  sim.Add(request);
  int most = 0;
  while (sim.Step()) {
    const Batch& batch = sim.last_batch();
    const int first = batch.positions.front(), seen = std::max(0, first - kWindow + 1);
    for (int64_t b = 0; b < batch.max_blocks; ++b) {
      EXPECT_EQ(batch.block_table[b] == -1, b < seen / 64) << first;
    }
    most = std::max(most, static_cast<int>(sim.scheduler().stats().blocks_used));
  }
  EXPECT_EQ(request.sink->tokens(), request.expected(kWindow));
  EXPECT_EQ(request.sink->finish()->cache_bytes, 3 * 128);  // 99 tokens before a chunk of 64
  EXPECT_LE(most, 3);
  sim.ExpectIdle();
}

// Without its window each would fill the pool.
TEST(SchedulerTest, WindowedSequencesShareAPool) {
  constexpr int kWindow = 64;
  Simulation sim({.max_batch_tokens = 64}, {.num_blocks = 16, .sliding_window = kWindow});
  std::vector<TestRequest> requests;
  for (int i = 0; i < 6; ++i) requests.emplace_back(std::to_string(i), 20, 1000, i);
  for (const TestRequest& r : requests) sim.Add(r);
  int most = 0;
  while (sim.Step()) most = std::max(most, sim.last_batch().num_sequences());
  EXPECT_EQ(most, 6);
  EXPECT_EQ(sim.scheduler().stats().preemptions, 0);
  for (const TestRequest& r : requests) EXPECT_EQ(r.sink->tokens(), r.expected(kWindow));
}

// Each comes to see three blocks, in a pool of five.
TEST(SchedulerTest, WindowedSequencesPreemptAndResume) {
  constexpr int kWindow = 100;
  Simulation sim({}, {.num_blocks = 5, .sliding_window = kWindow});
  TestRequest first("first", 40, 500, 1), second("second", 4, 400, 2);
  sim.Add(first);
  sim.Add(second);
  sim.Run();
  EXPECT_EQ(first.sink->tokens(), first.expected(kWindow));
  EXPECT_EQ(second.sink->tokens(), second.expected(kWindow));
  EXPECT_EQ(first.sink->finish()->preemptions, 0);
  EXPECT_GT(second.sink->finish()->preemptions, 0);
  EXPECT_EQ(second.sink->finish()->cache_bytes, 3 * 128);
}

// The one that gives way has left blocks behind by then, and starts again at its first token.
TEST(SchedulerTest, APreemptedSequenceHasNothingBehindItsWindow) {
  constexpr int kWindow = 100;
  int preempted = 0;
  for (int prompt = 163; prompt < 163 + 64; prompt += 7) {
    Simulation sim({}, {.num_blocks = 5, .sliding_window = kWindow});
    TestRequest first("first", 40, 500, 1), second("second", prompt, 400, 2);
    sim.Add(first);
    sim.Add(second);
    bool left_behind = false;
    int computed = 0;
    while (sim.Step()) {
      const Batch& batch = sim.last_batch();
      const int now = batch.num_sequences() > 1 ? batch.kv_lens[1] : 0;
      left_behind |= now == 0 && computed >= kWindow + 64;
      computed = now;
    }
    preempted += left_behind && second.sink->finish()->preemptions > 0;
    EXPECT_EQ(first.sink->tokens(), first.expected(kWindow)) << prompt;
    EXPECT_EQ(second.sink->tokens(), second.expected(kWindow)) << prompt;
  }
  EXPECT_GT(preempted, 0);
}

TEST(SchedulerTest, SeatsAreCountedAndComeBack) {
  Simulation sim({.max_sequences = 3}, {.num_blocks = 16, .bytes_per_sequence = 1000});
  std::vector<TestRequest> requests;
  for (int i = 0; i < 9; ++i) requests.emplace_back(std::to_string(i), 10, 5 + i, i);
  for (const TestRequest& r : requests) sim.Add(r);
  EXPECT_EQ(sim.scheduler().stats().seats_total, 3);
  EXPECT_EQ(sim.scheduler().stats().cache_bytes_total, 16 * 128 + 3 * 1000);
  while (sim.Step()) {
    const ServeStats stats = sim.scheduler().stats();
    EXPECT_EQ(stats.cache_bytes_used, stats.blocks_used * 128 + stats.running * 1000);
    for (const int32_t seat : sim.last_batch().seats) EXPECT_LT(seat, 3);
  }
  for (const TestRequest& r : requests) {
    EXPECT_EQ(r.sink->tokens(), r.expected());
    EXPECT_EQ(r.sink->finish()->cache_bytes, 128 + 1000);
    EXPECT_EQ(r.sink->finish()->full_cache_bytes, 64 * 8);
  }
}

TEST(SchedulerTest, WaitingTokensCountWhatIsStillToDo) {
  Simulation sim({.max_sequences = 1}, {});
  TestRequest a("a", 10, 2), b("b", 30, 2);
  sim.Add(a);
  sim.Add(b);
  EXPECT_EQ(sim.scheduler().waiting_tokens(), 40);
  sim.Step();
  EXPECT_EQ(sim.scheduler().waiting_tokens(), 30);
  sim.Run();
  EXPECT_EQ(sim.scheduler().waiting_tokens(), 0);
  EXPECT_EQ(sim.scheduler().stats().requests_finished[static_cast<int>(FinishReason::kLength)], 2);
}

}  // namespace
}  // namespace latentd
