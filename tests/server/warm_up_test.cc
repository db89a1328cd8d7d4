#include "server/warm_up.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/fake_clock.h"
#include "tests/testing/fake_engine.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

TEST(WarmUpTest, GeneratesAFewTokensAndTimesThem) {
  FakeClock clock;
  int64_t steps = 0, rows = 0;
  FakeEngine engine({.on_step = [&](int64_t, const Batch& batch) {
    clock.Advance(absl::Milliseconds(10));
    ++steps;
    rows += batch.num_tokens();
    return absl::OkStatus();
  }});
  const auto times = WarmUp(&engine, &clock);
  ASSERT_TRUE(times.ok()) << times.status();
  EXPECT_EQ(times->first_token, absl::Milliseconds(10));
  EXPECT_EQ(times->total, absl::Milliseconds(10 * steps));
  EXPECT_GT(steps, 1);
  EXPECT_GT(rows, steps);
}

TEST(WarmUpTest, FitsTheSmallestEngine) {
  FakeClock clock;
  for (const int max_context : {1, 2, 5, 20}) {
    FakeEngine engine({.vocab_size = 3, .max_context = max_context, .num_blocks = 1});
    EXPECT_TRUE(WarmUp(&engine, &clock).ok()) << max_context;
  }
}

TEST(WarmUpTest, AnEngineThatDoesNotAnswerIsAnError) {
  FakeClock clock;
  FakeEngine dead(
      {.on_step = [](int64_t, const Batch&) { return absl::InternalError("device lost"); }});
  EXPECT_THAT(std::string(WarmUp(&dead, &clock).status().message()), HasSubstr("device lost"));
  FakeEngine nan({.is_nan = [](const BatchSample&) { return true; }});
  EXPECT_THAT(std::string(WarmUp(&nan, &clock).status().message()), HasSubstr("no usable logits"));
}

}  // namespace
}  // namespace latentd
