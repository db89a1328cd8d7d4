#include "engine/evaluation/perplexity.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

// Gives the token t that follows t - 1 the log probability -t / 10.
class ScriptedEngine final : public Engine {
 public:
  ScriptedEngine() { info_ = {.vocab_size = 1024, .max_context = 1024}; }
  const EngineInfo& info() const override { return info_; }

  absl::StatusOr<StepOutput> Step(const Batch& batch) override {
    token_ids_ = batch.token_ids;
    return StepOutput{};
  }
  absl::StatusOr<absl::Span<const float>> Logits(absl::Span<const int32_t> rows) override {
    logits_.assign(rows.size() * info_.vocab_size, -1e4f);
    for (size_t i = 0; i < rows.size(); ++i) {
      float* row = logits_.data() + i * info_.vocab_size;
      const int next = token_ids_[rows[i]] + 1;
      const float logprob = -0.1f * static_cast<float>(next);
      row[next] = next == poisoned ? std::numeric_limits<float>::quiet_NaN() : logprob;
      row[0] = std::log1p(-std::exp(logprob));  // the rest
    }
    return logits_;
  }

  int poisoned = -1;  // the token without a finite probability

 private:
  EngineInfo info_;
  std::vector<int32_t> token_ids_;
  std::vector<float> logits_;
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
                                        2, Ignore);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->tokens, 12);
  // 1 .. 9 and 17 .. 19
  EXPECT_NEAR(result->perplexity, std::exp(0.1 * (45 + 54) / 12), 1e-4);
}

TEST(Perplexity, StandardErrorIsTheDeltaMethods) {
  ScriptedEngine engine;
  const std::vector<int32_t> ids = CountingIds(4);
  const auto result = MeasurePerplexity(engine, {{.tokens = ids}}, 1, Ignore);
  ASSERT_TRUE(result.ok());  // .1 .2 .3: the variance is .02 / 3
  EXPECT_NEAR(result->standard_error, std::exp(0.2) * std::sqrt(0.02 / 3 / 3), 1e-5);
}

TEST(Perplexity, BadWindowsAndBadModelsAreNamed) {
  ScriptedEngine engine;
  const std::vector<int32_t> ids = CountingIds(2048);
  EXPECT_THAT(MeasurePerplexity(engine, {{.tokens = ids}}, 1, Ignore).status().message(),
              HasSubstr("--window is 2048, the context is 1024"));
  engine.poisoned = 3;
  EXPECT_THAT(
      MeasurePerplexity(engine, {{.tokens = absl::MakeConstSpan(ids).subspan(0, 9)}}, 1, Ignore)
          .status()
          .message(),
      HasSubstr("not finite"));
}

}  // namespace
}  // namespace latentd
