#include "engine/benchmark/step.h"

#include "engine/open_model.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

class StepBenchTest : public ::testing::Test {
 protected:
  void SetUp() override {
    // 4 blocks of 64 tokens.
    auto opened =
        OpenModel({.model = WriteTinyModel({}), .threads = 1, .cache_bytes = 4 * 16384}, 4);
    ASSERT_TRUE(opened.ok()) << opened.status();
    opened_ = *std::move(opened);
  }
  absl::StatusOr<StepBenchResult> Run(const StepBenchOptions& options) {
    return BenchmarkSteps(*opened_.engine, options, [](double) {});
  }
  OpenedModel opened_;
};

TEST_F(StepBenchTest, TimesWhatIsAskedFor) {
  const auto both =
      Run({.prompt = 70, .context = 60, .batch = 2, .steps = 10, .repeats = 2, .chunk = 32});
  ASSERT_TRUE(both.ok()) << both.status();
  EXPECT_GT(both->prefill_tokens_per_s, 0);
  EXPECT_NEAR(both->decode_tokens_per_s, 2 / both->tpot_ms * 1e3, 1e-6);
  EXPECT_GT(both->step_ms_p50, 0);
  const auto prefill = Run({.prompt = 70, .steps = 0, .repeats = 1});
  ASSERT_TRUE(prefill.ok()) << prefill.status();
  EXPECT_EQ(prefill->decode_tokens_per_s, 0);
  const auto decode = Run({.prompt = 0, .steps = 2, .repeats = 1});
  ASSERT_TRUE(decode.ok()) << decode.status();
  EXPECT_EQ(decode->prefill_tokens_per_s, 0);
}

TEST_F(StepBenchTest, APretendedContextIsNotComputed) {
  const StepBenchOptions options{
      .prompt = 0, .context = 100, .batch = 2, .steps = 10, .repeats = 1, .pretend = true};
  opened_ = {};
  opened_ = *OpenModel({.model = WriteTinyModel({}),
                        .dummy_weights = true,
                        .threads = 1,
                        .cache_bytes = 4 * 16384,
                        .random_cache = true},
                       2);
  const auto result = Run(options);
  ASSERT_TRUE(result.ok()) << result.status();
  EXPECT_GT(result->step_ms_p50, 0);
}

TEST_F(StepBenchTest, WhatFitsIsKnownBefore) {
  const EngineInfo& info = opened_.engine->info();
  EXPECT_TRUE(Fits(info, {.prompt = 0, .context = 64, .batch = 2, .steps = 64}));
  EXPECT_FALSE(Fits(info, {.prompt = 0, .context = 64, .batch = 2, .steps = 65}));
  EXPECT_FALSE(Fits(info, {.prompt = 257, .context = 0, .batch = 1, .steps = 1}));
}

TEST_F(StepBenchTest, APoolOrContextThatIsTooSmallIsRefusedWithBothNumbers) {
  EXPECT_THAT(Run({.prompt = 10, .context = 200, .steps = 100}).status().message(),
              HasSubstr("--context and --steps make 300 tokens, the context is 256"));
  EXPECT_THAT(Run({.prompt = 100, .context = 0, .batch = 3, .steps = 1}).status().message(),
              HasSubstr("--batch 3 of 100 tokens needs 6 cache blocks, --cache-bytes has 4"));
}

}  // namespace
}  // namespace latentd
