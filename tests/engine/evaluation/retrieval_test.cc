#include "engine/evaluation/retrieval.h"

#include <filesystem>
#include <fstream>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/evaluation/word_tokenizer.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

int LengthOf(const Tokenizer& tokenizer, const Question& question) {
  const Question::Choice& choice = question.choices[0];
  return static_cast<int>(
      tokenizer.Encode(choice.context + choice.continuation, false, false)->size());
}

std::vector<Question> Needles(const Tokenizer& tokenizer, int tokens, int prompts, uint64_t seed) {
  const auto filler = tokenizer.Encode(BuiltInFiller(), false, false);
  const auto needles = MakeNeedles(tokenizer, *filler, tokens, prompts, seed);
  EXPECT_TRUE(needles.ok()) << needles.status();
  return *needles;
}

TEST(Retrieval, TheAnswerIsInTheTextOnceAndAsTheNeedleSaysIt) {
  const WordTokenizer tokenizer;
  std::set<std::string> answers;
  for (const Question& q : Needles(tokenizer, 300, 10, 1)) {
    const std::string& context = q.choices[0].context;
    const std::string answer = q.choices[0].continuation.substr(1);
    EXPECT_EQ(answer.size(), 7u);
    EXPECT_EQ(q.choices[0].length, 7);
    const size_t place = context.find(answer);
    ASSERT_NE(place, std::string::npos);
    EXPECT_EQ(context.find(answer, place + 1), std::string::npos);
    // The end of the question is the needle's own words before the number.
    const size_t asked = context.rfind("The secret number of the ");
    EXPECT_EQ(context.find(context.substr(asked) + " " + answer + "."),
              context.find("The secret number of the "));
    answers.insert(answer);
  }
  EXPECT_EQ(answers.size(), 10u);
}

TEST(Retrieval, PromptsHaveTheLengthAskedForAndNotMore) {
  const WordTokenizer tokenizer;
  for (const int tokens : {64, 512, 2048}) {
    for (const Question& q : Needles(tokenizer, tokens, 5, 3)) {
      EXPECT_LE(LengthOf(tokenizer, q), tokens);
      EXPECT_GE(LengthOf(tokenizer, q), tokens - 10);
    }
  }
}

TEST(Retrieval, NeedlesLieFromTheBeginningToTheEnd) {
  const WordTokenizer tokenizer;
  const std::vector<Question> needles = Needles(tokenizer, 1000, 5, 4);
  for (int i = 0; i < 5; ++i) {
    const std::string& context = needles[i].choices[0].context;
    const double depth = static_cast<double>(context.find("The secret number")) /
                         static_cast<double>(context.find("\n\nQuestion"));
    EXPECT_NEAR(depth, i / 4.0, 0.05) << i;
    const size_t place = context.find(" The secret number");
    EXPECT_TRUE(place == 0 || context[place - 1] == '.') << i;
  }
}

TEST(Retrieval, IsAFunctionOfTheSeed) {
  const WordTokenizer tokenizer;
  const auto text = [&](uint64_t seed) {
    return Needles(tokenizer, 200, 2, seed)[1].choices[0].context;
  };
  EXPECT_EQ(text(5), text(5));
  EXPECT_NE(text(5), text(6));
}

TEST(Retrieval, NoRoomIsNamedWithBothNumbers) {
  const WordTokenizer tokenizer;
  const std::string message(MakeNeedles(tokenizer, {0}, 20, 1, 1).status().message());
  EXPECT_THAT(message, HasSubstr("a prompt of 20 tokens"));
  EXPECT_THAT(message, HasSubstr("take "));
  EXPECT_FALSE(MakeNeedles(tokenizer, {}, 200, 1, 1).ok());
}

TEST(Retrieval, RulerAsksForItsFirstAnswer) {
  const std::string path = testing::TempDir() + "/ruler.jsonl";
  std::ofstream(path) << R"({"input": "The uuid is", "outputs": ["ab-12"], "length": 9})"
                      << "\n";
  const auto questions = ReadRuler(path);
  ASSERT_TRUE(questions.ok()) << questions.status();
  ASSERT_EQ(questions->size(), 1u);
  EXPECT_EQ((*questions)[0].choices[0].context, "The uuid is");
  EXPECT_EQ((*questions)[0].choices[0].continuation, " ab-12");
  std::ofstream(path) << R"({"input": "x", "outputs": []})"
                      << "\n";
  EXPECT_THAT(ReadRuler(path).status().message(), HasSubstr("line 1"));
  std::ofstream(path) << "\n[]\n";
  EXPECT_THAT(ReadRuler(path).status().message(), HasSubstr("line 2"));
  std::ofstream(path) << "\n";
  EXPECT_THAT(ReadRuler(path).status().message(), HasSubstr("has no prompts"));
}

}  // namespace
}  // namespace latentd
