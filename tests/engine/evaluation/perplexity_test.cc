#include "engine/evaluation/perplexity.h"

#include <cmath>
#include <limits>
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
    info_.vocab_size = 4096;
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
      output.logprobs.push_back(score.token_id == poisoned
                                    ? std::numeric_limits<float>::quiet_NaN()
                                    : -0.1f * static_cast<float>(score.token_id));
    }
    return output;
  }

  int poisoned = -1;  // the token without a finite probability

 private:
  EngineInfo info_;
  int next_position_ = 0;
};

std::vector<int32_t> CountingIds(int count) {
  std::vector<int32_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

absl::Status Ignore(double) { return absl::OkStatus(); }

TEST(Perplexity, IsTheMeanOverTheCountedTokensOfAllWindows) {
  ScriptedEngine engine;
  const std::vector<int32_t> ids = CountingIds(20);
  const absl::Span<const int32_t> text = ids;
  const auto result = MeasurePerplexity(engine,
                                        {{.tokens = text.subspan(0, 10), .first_counted = 1},
                                         {.tokens = text.subspan(10, 10), .first_counted = 7}},
                                        Ignore);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->tokens, 12);
  // 1 .. 9 and 17 .. 19
  EXPECT_NEAR(result->perplexity, std::exp(0.1 * (45 + 54) / 12), 1e-4);
}

TEST(Perplexity, StandardErrorIsTheDeltaMethods) {
  ScriptedEngine engine;
  const std::vector<int32_t> ids = CountingIds(4);
  const auto result = MeasurePerplexity(engine, {{.tokens = ids}}, Ignore);
  ASSERT_TRUE(result.ok());  // .1 .2 .3: the variance is .02 / 3
  EXPECT_NEAR(result->standard_error, std::exp(0.2) * std::sqrt(0.02 / 3 / 3), 1e-5);
}

TEST(Perplexity, LongWindowsAreComputedInSteps) {
  ScriptedEngine engine;
  const std::vector<int32_t> ids = CountingIds(1024);
  std::vector<double> shares;
  const auto result =
      MeasurePerplexity(engine, {{.tokens = ids, .first_counted = 513}}, [&](double share) {
        shares.push_back(share);
        return absl::OkStatus();
      });
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->tokens, 511);
  EXPECT_THAT(shares, ::testing::ElementsAre(512.0 / 1023, 1.0));
}

TEST(Perplexity, BadWindowsAndBadModelsAreNamed) {
  ScriptedEngine engine;
  const std::vector<int32_t> ids = CountingIds(2048);
  EXPECT_THAT(MeasurePerplexity(engine, {{.tokens = ids}}, Ignore).status().message(),
              HasSubstr("--window is 2048, the context is 1024"));
  engine.poisoned = 3;
  EXPECT_THAT(
      MeasurePerplexity(engine, {{.tokens = absl::MakeConstSpan(ids).subspan(0, 9)}}, Ignore)
          .status()
          .message(),
      HasSubstr("not finite"));
}

}  // namespace
}  // namespace latentd
