#include "engine/evaluation/continuation.h"

#include <cmath>
#include <map>
#include <numeric>

#include "base/random.h"
#include "engine/evaluation/windows.h"
#include "engine/local_engine.h"
#include "engine/model/plain_latents.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/evaluation/word_tokenizer.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

// Token t has the log probability -t after anything, and is the likeliest when it is one more than
// the token before it. Remembers which rows were computed.
class ScriptedEngine final : public Engine {
 public:
  explicit ScriptedEngine(int seats) {
    info_ = {.vocab_size = 1000, .max_context = 900, .num_blocks = 20, .num_sequences = seats};
  }
  const EngineInfo& info() const override { return info_; }
  absl::StatusOr<absl::Span<const float>> Logits(absl::Span<const int32_t>) override {
    return absl::UnimplementedError("no logits");
  }
  absl::StatusOr<StepOutput> Step(const Batch& batch) override {
    EXPECT_LE(batch.num_tokens(), kStepTokens);
    rows += batch.num_tokens();
    ++steps;
    StepOutput output;
    for (const BatchScore& s : batch.scores) {
      output.logprobs.push_back(-static_cast<float>(s.token_id));
    }
    for (const BatchSample& s : batch.samples) {
      EXPECT_EQ(s.params.temperature, 0.0f);
      output.samples.push_back({.token_id = batch.token_ids[s.row] + 1});
    }
    return output;
  }
  int rows = 0, steps = 0;

 private:
  EngineInfo info_;
};

Continuation Counting(int length, int start, std::vector<int32_t> tail = {}) {
  Continuation c{.tokens = std::vector<int32_t>(length), .start = start};
  std::iota(c.tokens.begin(), c.tokens.end(), 0);
  c.tokens.insert(c.tokens.end(), tail.begin(), tail.end());
  return c;
}

TEST(Continuation, TheTailIsScoredAndNothingElse) {
  ScriptedEngine engine(1);
  const auto scores = ScoreContinuations(
      engine, {{Counting(10, 10, {10, 11}), Counting(10, 10, {50}), Counting(10, 10, {10, 60})}},
      true);
  ASSERT_TRUE(scores.ok()) << scores.status();
  const std::vector<ContinuationScore>& s = (*scores)[0];
  EXPECT_DOUBLE_EQ(s[0].logprob, -21.0);
  EXPECT_EQ(s[0].tokens, 2);
  EXPECT_TRUE(s[0].greedy());
  EXPECT_DOUBLE_EQ(s[1].logprob, -50.0);
  EXPECT_FALSE(s[1].greedy());
  EXPECT_DOUBLE_EQ(s[2].logprob, -70.0);
  EXPECT_EQ(s[2].greedy_tokens, 1);
}

TEST(Continuation, WhatIsCommonIsComputedOnce) {
  ScriptedEngine engine(1);
  const Continuation a = Counting(50, 50, {7, 8, 9}), b = Counting(50, 50, {9, 8});
  ASSERT_TRUE(ScoreContinuations(engine, {{a, b, a}}, false).ok());
  EXPECT_EQ(engine.rows, 50 + 2 + 1 + 2);
}

TEST(Continuation, ALeftPageIsComputedAgain) {
  ScriptedEngine engine(1);
  // The common part ends at 60 of page 0; the first tail goes on to page 1.
  const Continuation a = Counting(60, 60, std::vector<int32_t>(10, 5)),
                     b = Counting(60, 60, {9, 8});
  ASSERT_TRUE(ScoreContinuations(engine, {{a, b, b}}, false).ok());
  EXPECT_EQ(engine.rows, 60 + 9 + (60 + 1) + 1);
}

TEST(Continuation, QuestionsShareSteps) {
  ScriptedEngine engine(4);
  const std::vector<Continuation> question = {Counting(50, 50, {7, 8}), Counting(50, 50, {9, 8})};
  ASSERT_TRUE(ScoreContinuations(engine, std::vector(4, question), false).ok());
  EXPECT_EQ(engine.steps, 3);
  // Ten blocks each, of twenty: two at a time.
  ScriptedEngine small(4);
  const std::vector<Continuation> large = {Counting(600, 590)};
  ASSERT_TRUE(ScoreContinuations(small, std::vector(4, large), false).ok());
  EXPECT_EQ(small.rows, 4 * 599);
}

TEST(Continuation, TooLongQuestionsAreNamedWithBothNumbers) {
  ScriptedEngine engine(1);
  const std::vector<Continuation> good = {Counting(5, 2)};
  EXPECT_THAT(ScoreContinuations(engine, {good, {Counting(902, 2)}}, false).status().message(),
              HasSubstr("question 1 has 902 tokens, the context is 900"));
}

TEST(Continuation, SpaceAtTheContextsEndIsTheContinuations) {
  const WordTokenizer tokenizer;
  const auto split = EncodeContinuation(tokenizer, "one two ", "three four");
  ASSERT_TRUE(split.ok());
  EXPECT_EQ(split->start, 2);
  EXPECT_EQ(*tokenizer.Decode(split->tokens, false), "one two three four");
  EXPECT_EQ(tokenizer.TokenBytes(split->tokens[2], false), " three");
  EXPECT_FALSE(EncodeContinuation(tokenizer, "", " three").ok());
  EXPECT_FALSE(EncodeContinuation(tokenizer, "one", "").ok());
}

TEST(Continuation, ATokenAcrossTheSeamStaysTheContexts) {
  const WordTokenizer tokenizer;
  // "do" + "gs are": both together have the tokens "dogs", " are"; the context alone has "do".
  const auto split = EncodeContinuation(tokenizer, "do", "gs are");
  ASSERT_TRUE(split.ok());
  EXPECT_EQ(*tokenizer.Decode(split->tokens, false), "do are");
}

// ---- Through the real pages ----

std::vector<int32_t> RandomTokens(int count, uint64_t seed) {
  std::vector<int32_t> tokens(count);
  for (int i = 0; i < count; ++i) tokens[i] = static_cast<int32_t>(RandomBits(seed, i) % 128);
  return tokens;
}

Continuation Joined(std::vector<int32_t> tokens, int start, const std::vector<int32_t>& tail) {
  tokens.insert(tokens.end(), tail.begin(), tail.end());
  return {.tokens = std::move(tokens), .start = start};
}

// Questions whose common part ends before, at and after the end of a page, with tails that stay in
// it and that leave it.
std::vector<std::vector<Continuation>> HostileQuestions() {
  std::vector<std::vector<Continuation>> questions;
  for (const int length : {1, 3, 62, 64, 65, 130}) {
    const std::vector<int32_t> common = RandomTokens(length, length);
    std::vector<Continuation> question;
    for (const int tail : {2, 70, 5, 1, 66}) {
      question.push_back(Joined(common, length, RandomTokens(tail, 100 * length + tail)));
    }
    questions.push_back(question);
  }
  return questions;
}

TEST(ContinuationLaw, AScoreIsTheSameAloneAndAmongOthers) {
  const auto checkpoint = Checkpoint::Open(WriteTinyModel({.family = "llama"}));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  for (const bool compressed : {false, true}) {
    std::unique_ptr<Latents> latents;
    if (compressed) {
      auto made = MakePlainLatents(**checkpoint, 4);
      ASSERT_TRUE(made.ok()) << made.status();
      latents = *std::move(made);
      for (LatentLayer& layer : latents->layers) layer.cache.own_page = true;
    }
    const auto make = [&](int seats) {
      auto ops = CreateCpuOps(2);
      auto engine = CreateLocalEngine(**checkpoint, latents.get(), *std::move(ops),
                                      {.num_blocks = 4 * seats, .num_sequences = seats});
      EXPECT_TRUE(engine.ok()) << engine.status();
      return *std::move(engine);
    };
    const auto questions = HostileQuestions();
    const auto together = ScoreContinuations(*make(4), questions, false);
    ASSERT_TRUE(together.ok()) << together.status();
    for (size_t q = 0; q < questions.size(); ++q) {
      for (size_t c = 0; c < questions[q].size(); ++c) {
        const auto alone = ScoreContinuations(*make(1), {{questions[q][c]}}, false);
        ASSERT_TRUE(alone.ok());
        EXPECT_EQ((*together)[q][c].logprob, (*alone)[0][0].logprob)
            << "compressed " << compressed << ", question " << q << ", continuation " << c;
        EXPECT_EQ((*together)[q][c].tokens, (*alone)[0][0].tokens);
      }
    }
  }
}

}  // namespace
}  // namespace latentd
