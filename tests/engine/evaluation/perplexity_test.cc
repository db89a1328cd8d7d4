#include "engine/evaluation/perplexity.h"

#include <cmath>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

// Gives token t the log probability -t / 10, and checks that every sequence is computed in order
// from its start.
class ScriptedEngine final : public Engine {
 public:
  ScriptedEngine() {
    info_.max_context = 1024;
    info_.num_blocks = 16;
  }
  const EngineInfo& info() const override { return info_; }
  absl::StatusOr<absl::Span<const float>> Logits(absl::Span<const int32_t>) override {
    return absl::UnimplementedError("no logits");
  }

  absl::StatusOr<StepOutput> Step(const Batch& batch) override {
    EXPECT_EQ(batch.num_sequences(), 1);
    EXPECT_TRUE(batch.positions[0] == 0 || batch.positions[0] == next_position_);
    next_position_ = batch.positions.back() + 1;
    StepOutput output;
    for (const BatchScore& score : batch.scores) {
      EXPECT_EQ(batch.token_ids[score.row] + 1, score.token_id);  // the ids under test count up
      output.logprobs.push_back(-0.1f * static_cast<float>(score.token_id));
    }
    return output;
  }

 private:
  EngineInfo info_;
  int next_position_ = 0;
};

std::vector<int32_t> CountingIds(int count) {
  std::vector<int32_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

double PerplexityOf(std::initializer_list<std::pair<int, int>> counted) {  // [first, last] ids
  double sum = 0;
  int count = 0;
  for (const auto& [first, last] : counted) {
    for (int id = first; id <= last; ++id, ++count) sum += 0.1 * id;
  }
  return std::exp(sum / count);
}

void Ignore(double) {}

TEST(Perplexity, CountsEveryTokenButTheFirstOfAWindow) {
  ScriptedEngine engine;
  const auto result = MeasurePerplexity(engine, CountingIds(25), {.window = 10}, Ignore);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->windows, 2);
  EXPECT_EQ(result->tokens, 18);
  EXPECT_NEAR(result->perplexity, PerplexityOf({{1, 9}, {11, 19}}), 1e-4);
}

TEST(Perplexity, SecondHalfCountsAsLlamaPerplexityDoes) {
  ScriptedEngine engine;
  const auto result = MeasurePerplexity(
      engine, CountingIds(25), {.window = 10, .first_windows = 1, .second_half = true}, Ignore);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->tokens, 4);  // the tokens at 6..9: window - window / 2 - 1
  EXPECT_NEAR(result->perplexity, PerplexityOf({{6, 9}}), 1e-4);
}

TEST(Perplexity, WindowsAreSpacedFromTheFirstTokenToTheLast) {
  ScriptedEngine engine;
  const auto result =
      MeasurePerplexity(engine, CountingIds(31), {.window = 5, .windows = 3}, Ignore);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->tokens, 12);
  EXPECT_NEAR(result->perplexity, PerplexityOf({{1, 4}, {14, 17}, {27, 30}}), 1e-4);
}

TEST(Perplexity, LongWindowsAreComputedInSteps) {
  ScriptedEngine engine;
  const auto result =
      MeasurePerplexity(engine, CountingIds(1024), {.window = 1024, .second_half = true}, Ignore);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->tokens, 511);
}

TEST(Perplexity, TooShortATextIsNamedWithBothNumbers) {
  ScriptedEngine engine;
  EXPECT_THAT(MeasurePerplexity(engine, CountingIds(9), {.window = 10}, Ignore).status().message(),
              HasSubstr("has 9 tokens, 1 windows of 10 need 10"));
  EXPECT_THAT(MeasurePerplexity(engine, CountingIds(29), {.window = 10, .first_windows = 3}, Ignore)
                  .status()
                  .message(),
              HasSubstr("has 29 tokens, 3 windows of 10 need 30"));
  EXPECT_THAT(
      MeasurePerplexity(engine, CountingIds(3000), {.window = 2048}, Ignore).status().message(),
      HasSubstr("--window is 2048, the context is 1024"));
}

}  // namespace
}  // namespace latentd
