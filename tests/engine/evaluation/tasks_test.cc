#include "engine/evaluation/tasks.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/evaluation/word_tokenizer.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

Question Choices(std::vector<int> lengths, int gold) {
  Question question{.gold = gold};
  for (const int length : lengths) question.choices.push_back({.length = length});
  return question;
}

TEST(Judge, AccTakesTheLikeliestAndAccNormTheLikeliestPerCharacter) {
  const std::vector<ContinuationScore> scores = {{.logprob = -4}, {.logprob = -5}, {.logprob = -9}};
  nlohmann::ordered_json judged = Judge(Choices({2, 5, 9}, 0), scores);
  EXPECT_EQ(judged["choice"], 0);
  EXPECT_EQ(judged["acc"], 1);
  EXPECT_EQ(judged["choice_norm"], 1);  // -2, -1 and -1: the first among equals
  EXPECT_EQ(judged["acc_norm"], 0);
  judged = Judge(Choices({2, 5, 9}, 1), scores);
  EXPECT_EQ(judged["acc"], 0);
  EXPECT_EQ(judged["acc_norm"], 1);
}

TEST(Judge, OneAnswerIsRightWhenGreedyDecodingGivesIt) {
  const Question question = Choices({7}, 0);
  nlohmann::ordered_json judged =
      Judge(question, {{.logprob = -1.5, .tokens = 4, .greedy_tokens = 3}});
  EXPECT_EQ(judged["acc"], 0);
  EXPECT_EQ(judged["token_acc"], 0.75);
  EXPECT_EQ(judged["logprob"], -1.5);
  judged = Judge(question, {{.logprob = -1.5, .tokens = 4, .greedy_tokens = 4}});
  EXPECT_EQ(judged["acc"], 1);
}

// Likes small ids.
class ScriptedEngine final : public Engine {
 public:
  ScriptedEngine() {
    info_ = {.vocab_size = 1000, .max_context = 20, .num_blocks = 9, .num_sequences = 2};
  }
  const EngineInfo& info() const override { return info_; }
  absl::StatusOr<absl::Span<const float>> Logits(absl::Span<const int32_t>) override {
    return absl::UnimplementedError("no logits");
  }
  absl::StatusOr<StepOutput> Step(const Batch& batch) override {
    if (steps_left-- == 0) return absl::UnavailableError("killed");
    StepOutput output;
    for (const BatchScore& s : batch.scores) {
      output.logprobs.push_back(-static_cast<float>(s.token_id));
    }
    output.samples.resize(batch.samples.size());
    return output;
  }
  int steps_left = 1 << 20;

 private:
  EngineInfo info_;
};

std::vector<Question> FiveQuestions() {
  std::vector<Question> questions;
  for (int i = 0; i < 5; ++i) {
    questions.push_back({.choices = {{.context = "is it", .continuation = " yes", .length = 3},
                                     {.context = "is it", .continuation = " no", .length = 2}},
                         .gold = i % 2});
  }
  return questions;
}

absl::Status Ignore(double) { return absl::OkStatus(); }

TEST(Tasks, WhatWasAnsweredIsNotAskedAgain) {
  const WordTokenizer tokenizer;  // "is", " it", " yes", " no": 0, 1, 2, 3
  const std::vector<Question> questions = FiveQuestions();
  ScriptedEngine engine;
  ItemsFile items;
  // A group of two questions takes one step: tails of one token need no rows after the common
  // ones. The third group fails.
  engine.steps_left = 2;
  EXPECT_FALSE(
      AnswerQuestions(engine, tokenizer, "t", questions, {0, 1, 2, 3, 4}, &items, Ignore).ok());
  EXPECT_EQ(items.items().size(), 4u);
  engine.steps_left = 1;
  EXPECT_TRUE(
      AnswerQuestions(engine, tokenizer, "t", questions, {0, 1, 2, 3, 4}, &items, Ignore).ok());
  ASSERT_EQ(items.items().size(), 5u);
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ((*items.Find({"t", i}))["acc"], i % 2 == 0 ? 1 : 0) << i;
  }
}

TEST(Tasks, AnErrorNamesTaskAndQuestion) {
  const WordTokenizer tokenizer;
  std::vector<Question> questions = FiveQuestions();
  questions[3].choices[0].continuation.clear();
  ScriptedEngine engine;
  ItemsFile items;
  EXPECT_THAT(AnswerQuestions(engine, tokenizer, "piqa", questions, {3}, &items, Ignore).message(),
              HasSubstr("piqa, question 3: "));
  // Of those that are asked together, the one that does not fit.
  questions = FiveQuestions();
  for (int i = 0; i < 20; ++i) questions[4].choices[1].context += " it";
  EXPECT_THAT(
      AnswerQuestions(engine, tokenizer, "piqa", questions, {2, 4}, &items, Ignore).message(),
      HasSubstr("piqa, question 4: has 23 tokens, the context is 20"));
}

}  // namespace
}  // namespace latentd
