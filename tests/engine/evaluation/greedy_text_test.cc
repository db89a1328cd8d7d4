#include "engine/evaluation/greedy_text.h"

#include <map>

#include "engine/evaluation/windows.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Counts up from the last token. Checks that every seat's rows come in order.
class CountingEngine final : public Engine {
 public:
  explicit CountingEngine(int seats) {
    info_ = {.vocab_size = 5000, .max_context = 700, .num_blocks = 12, .num_sequences = seats};
  }
  const EngineInfo& info() const override { return info_; }
  absl::StatusOr<absl::Span<const float>> Logits(absl::Span<const int32_t>) override {
    return absl::UnimplementedError("no logits");
  }
  absl::StatusOr<StepOutput> Step(const Batch& batch) override {
    EXPECT_LE(batch.num_tokens(), kStepTokens);
    for (int s = 0; s < batch.num_sequences(); ++s) {
      const int first = batch.positions[batch.cu_q_lens[s]];
      EXPECT_TRUE(first == 0 || first == next_[batch.seats[s]]);
      next_[batch.seats[s]] = batch.kv_lens[s];
    }
    StepOutput output;
    for (const BatchSample& sample : batch.samples) {
      EXPECT_EQ(sample.params.temperature, 0.0f);
      EXPECT_EQ(sample.position, batch.positions[sample.row] + 1);
      output.samples.push_back({.token_id = batch.token_ids[sample.row] + 1});
    }
    return output;
  }

 private:
  EngineInfo info_;
  std::map<int, int> next_;
};

TEST(GreedyText, EndsAtItsLengthOrWithAStopToken) {
  CountingEngine engine(4);
  const auto texts = GenerateGreedy(engine, {{7, 10}, {1}, {29}}, 3, {12});
  ASSERT_TRUE(texts.ok()) << texts.status();
  EXPECT_THAT(*texts,
              ElementsAre(ElementsAre(11, 12), ElementsAre(2, 3, 4), ElementsAre(30, 31, 32)));
}

TEST(GreedyText, SeatsAndBlocksBoundHowManyAreAtWork) {
  std::vector<std::vector<int32_t>> prompts;
  for (int i = 0; i < 7; ++i) prompts.push_back(std::vector<int32_t>(300, 1000 * (i % 4)));
  CountingEngine one(1), four(4);  // twelve blocks: two of five blocks each
  const auto alone = GenerateGreedy(one, prompts, 20, {}),
             some = GenerateGreedy(four, prompts, 20, {});
  ASSERT_TRUE(alone.ok() && some.ok());
  EXPECT_EQ(*alone, *some);
  EXPECT_EQ(alone->size(), 7u);
  EXPECT_EQ((*alone)[6].back(), 2020);
}

TEST(GreedyText, WhatDoesNotFitIsNamedWithBothNumbers) {
  CountingEngine engine(1);
  EXPECT_THAT(
      GenerateGreedy(engine, {{1}, std::vector<int32_t>(600, 1)}, 101, {}).status().message(),
      HasSubstr("prompt 1 and its text have 701 tokens, the context is 700"));
  EXPECT_THAT(GenerateGreedy(engine, {{}}, 3, {}).status().message(),
              HasSubstr("prompt 0 is empty"));
}

TEST(CompareTexts, CountsEqualPlacesOfTheLongerText) {
  TextComparison c = CompareTexts({1, 2, 3, 4}, {1, 2, 9, 4, 5});
  EXPECT_EQ(c.tokens, 5);
  EXPECT_EQ(c.first_difference, 2);
  EXPECT_DOUBLE_EQ(c.equal_share, 0.6);
  c = CompareTexts({1, 2}, {1, 2});
  EXPECT_EQ(c.first_difference, c.tokens);
  EXPECT_DOUBLE_EQ(c.equal_share, 1.0);
  c = CompareTexts({1, 2}, {1, 2, 3});
  EXPECT_EQ(c.first_difference, 2);
  EXPECT_LT(c.first_difference, c.tokens);
}

}  // namespace
}  // namespace latentd
