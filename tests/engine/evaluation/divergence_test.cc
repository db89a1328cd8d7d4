#include "engine/evaluation/divergence.h"

#include <cmath>
#include <limits>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

// Two tokens; at position p, the logit of token 1 is advantage(p), that of token 0 is zero.
class ScriptedEngine final : public Engine {
 public:
  explicit ScriptedEngine(std::function<float(int)> advantage, int vocab = 2)
      : advantage_(std::move(advantage)) {
    info_ = {.model_name = "scripted", .vocab_size = vocab, .max_context = 1100};
  }
  const EngineInfo& info() const override { return info_; }

  absl::StatusOr<StepOutput> Step(const Batch& batch) override {
    EXPECT_EQ(batch.positions[0], next_position_);
    next_position_ = batch.kv_lens[0] == last_row_ ? 0 : batch.kv_lens[0];
    positions_ = batch.positions;
    return StepOutput{};
  }

  absl::StatusOr<absl::Span<const float>> Logits(absl::Span<const int32_t> rows) override {
    EXPECT_LE(rows.size(), 64u);
    logits_.assign(2 * rows.size(), 0.0f);
    for (size_t i = 0; i < rows.size(); ++i) logits_[2 * i + 1] = advantage_(positions_[rows[i]]);
    return logits_;
  }

  void EndWindowsAt(int rows) { last_row_ = rows; }

 private:
  const std::function<float(int)> advantage_;
  EngineInfo info_;
  int next_position_ = 0;
  int last_row_ = -1;
  std::vector<int32_t> positions_;
  std::vector<float> logits_;
};

absl::Status Ignore(double) { return absl::OkStatus(); }

double Kl(double p, double q) {  // of advantages
  const auto log_one = [](double x) { return -std::log1p(std::exp(-x)); };
  const auto log_zero = [](double x) { return -std::log1p(std::exp(x)); };
  return std::exp(log_one(p)) * (log_one(p) - log_one(q)) +
         std::exp(log_zero(p)) * (log_zero(p) - log_zero(q));
}

TEST(Divergence, AnEngineDoesNotDivergeFromItself) {
  const auto advantage = [](int p) { return 0.01f * static_cast<float>(p); };
  ScriptedEngine reference(advantage), engine(advantage);
  const std::vector<int32_t> ids(100, 1);
  const auto result = MeasureDivergence(reference, engine, {{.tokens = ids}}, 2, Ignore);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->tokens, 99);
  EXPECT_NEAR(result->kl_mean, 0.0, 1e-14);
  EXPECT_NEAR(result->kl_p99, 0.0, 1e-14);
  EXPECT_EQ(result->top1, 1.0);
  EXPECT_EQ(result->perplexity, result->reference_perplexity);
}

TEST(Divergence, IsTheMeanOverCountedTokensInStepsOfTheWindow) {
  const auto sure = [](int) { return 2.0f; };
  const auto unsure = [](int p) { return p < 599 ? 1.0f : -1.0f; };
  ScriptedEngine reference(sure), engine(unsure);
  reference.EndWindowsAt(999), engine.EndWindowsAt(999);
  const std::vector<int32_t> ids(1000, 1);
  const TextWindow window{.tokens = ids, .first_counted = 500};
  const auto result = MeasureDivergence(reference, engine, {window, window}, 1, Ignore);
  ASSERT_TRUE(result.ok());
  EXPECT_EQ(result->tokens, 1000);
  // Rows 499 .. 598 of 499 .. 998 agree about the likeliest token.
  const double near = Kl(2, 1), far = Kl(2, -1);
  EXPECT_NEAR(result->kl_mean, 0.2 * near + 0.8 * far, 1e-12);
  EXPECT_NEAR(result->kl_standard_error, std::sqrt(0.2 * 0.8 / 1000) * (far - near), 1e-12);
  EXPECT_NEAR(result->kl_p99, far, 1e-12);
  EXPECT_DOUBLE_EQ(result->top1, 0.2);
  EXPECT_NEAR(result->reference_perplexity, 1 + std::exp(-2.0), 1e-12);
  EXPECT_NEAR(result->perplexity,
              std::pow(1 + std::exp(-1.0), 0.2) * std::pow(1 + std::exp(1.0), 0.8), 1e-12);
}

TEST(Divergence, OneInAHundredMayLieAboveP99) {
  // Of 150 tokens the 149th is the first that 99 % do not exceed.
  for (const auto& [outliers, expected] : {std::pair{1, Kl(0, 1)}, std::pair{2, Kl(0, 5)}}) {
    ScriptedEngine reference([](int) { return 0.0f; });
    ScriptedEngine engine([&, n = outliers](int p) { return p < n ? 5.0f : 1.0f; });
    const std::vector<int32_t> ids(151, 0);
    const auto result = MeasureDivergence(reference, engine, {{.tokens = ids}}, 1, Ignore);
    ASSERT_TRUE(result.ok());
    EXPECT_NEAR(result->kl_p99, expected, 1e-12);
  }
}

TEST(Divergence, WhatCannotBeComparedIsNamed) {
  const auto even = [](int) { return 0.0f; };
  ScriptedEngine reference(even), other_vocabulary(even, 3);
  const std::vector<int32_t> ids(1200, 0);
  const TextWindow good{.tokens = absl::MakeConstSpan(ids).subspan(0, 9)};
  EXPECT_THAT(MeasureDivergence(reference, other_vocabulary, {good}, 1, Ignore).status().message(),
              HasSubstr("has 2 tokens, scripted has 3"));
  ScriptedEngine engine(even);
  EXPECT_THAT(MeasureDivergence(reference, engine, {{.tokens = ids}}, 1, Ignore).status().message(),
              HasSubstr("--window is 1200, the context is 1100"));
  ScriptedEngine broken([](int) { return std::numeric_limits<float>::quiet_NaN(); });
  EXPECT_THAT(MeasureDivergence(reference, broken, {good}, 1, Ignore).status().message(),
              HasSubstr("not finite"));
}

}  // namespace
}  // namespace latentd
