#include "engine/evaluation/question.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

const Task& Named(const std::string& name) {
  for (const Task& task : Tasks()) {
    if (task.name == name) return task;
  }
  ADD_FAILURE() << "no task " << name;
  return Tasks()[0];
}

Question Read(const std::string& task, const std::string& record) {
  const auto question = Named(task).read(record);
  EXPECT_TRUE(question.ok()) << question.status();
  return question.ok() ? *question : Question{};
}

TEST(Question, PiqaAsksForAnAnswer) {
  const Question q = Read(
      "piqa", R"({"query": "Question: dresser\n", "choices": ["a pin", "wood, dürr"], "gold": 1})");
  EXPECT_EQ(q.gold, 1);
  ASSERT_EQ(q.choices.size(), 2u);
  EXPECT_EQ(q.choices[0].context, "Question: dresser\nAnswer:");
  EXPECT_EQ(q.choices[0].continuation, " a pin");
  EXPECT_EQ(q.choices[0].length, 5);
  EXPECT_EQ(q.choices[1].length, 10);  // characters, not bytes
}

TEST(Question, ArcAsksOnALineOfItsOwn) {
  const Question q =
      Read("arc_challenge", R"({"query": "Question: Which?", "choices": ["x", "y"], "gold": 0})");
  EXPECT_EQ(q.choices[1].context, "Question: Which?\nAnswer:");
  EXPECT_EQ(q.choices[1].continuation, " y");
}

TEST(Question, OpenBookQaGoesOn) {
  const Question q =
      Read("openbookqa", R"({"query": "Fog is around:", "choices": ["a marsh"], "gold": 0})");
  EXPECT_EQ(q.choices[0].context, "Fog is around:");
}

TEST(Question, WinoGrandeScoresTheSameWordsAfterEachName) {
  const Question q =
      Read("winogrande",
           R"({"context_options": ["so Sarah", "so Maria"], "continuation": "slept.", "gold": 1})");
  EXPECT_EQ(q.choices[0].context, "so Sarah");
  EXPECT_EQ(q.choices[1].context, "so Maria");
  EXPECT_EQ(q.choices[0].continuation, q.choices[1].continuation);
}

TEST(Question, LambadaHasOneAnswer) {
  const Question q = Read("lambada", R"({"context": "care about", "continuation": "signs"})");
  ASSERT_EQ(q.choices.size(), 1u);
  EXPECT_EQ(q.choices[0].continuation, " signs");
}

TEST(Question, HellaSwagLosesItsMarks) {
  const Question q =
      Read("hellaswag", "Roof: [step] A man  sits. he\n3\nis [title] up.\nb\nc\nd [ e");
  EXPECT_EQ(q.gold, 3);
  EXPECT_EQ(q.choices[0].context, "Roof: A man sits. he");
  EXPECT_EQ(q.choices[0].continuation, " is up.");
  EXPECT_EQ(q.choices[3].continuation, " d [ e");  // an open bracket is no mark
}

TEST(Question, DamagedRecordsAreNamed) {
  EXPECT_THAT(Named("piqa").read("[]").status().message(), HasSubstr("not a JSON object"));
  EXPECT_THAT(Named("piqa").read(R"({"query": "q", "gold": 0})").status().message(),
              HasSubstr("\"choices\""));
  EXPECT_THAT(
      Named("piqa").read(R"({"query": "q", "choices": ["a"], "gold": 1})").status().message(),
      HasSubstr("number 1 of 1"));
  EXPECT_THAT(Named("hellaswag").read("c\nx\na\nb\nc\nd").status().message(), HasSubstr("\"x\""));
}

TEST(Question, FilesAreFoundAndTheirLinesNamed) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "questions";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  std::ofstream(folder / "openbook_qa.jsonl")
      << R"({"query": "a", "choices": ["b\u2028"], "gold": 0})"
      << "\n{}\n";
  const Task& task = Named("openbookqa");
  EXPECT_THAT(ReadQuestions(task, {"/nowhere", folder.string()}).status().message(),
              HasSubstr("openbook_qa.jsonl, line 2: has no"));
  const absl::Status missing = ReadQuestions(Named("piqa"), {folder.string()}).status();
  EXPECT_EQ(missing.code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(missing.message(), HasSubstr("no piqa.jsonl"));
  std::ofstream(folder / "hellaswag_val_full.txt") << "a\n0\nb\nc\nd\n";
  EXPECT_THAT(ReadQuestions(Named("hellaswag"), {folder.string()}).status().message(),
              HasSubstr("has 5 lines, a question takes 6"));
  std::ofstream(folder / "piqa.jsonl.bz2") << "BZh9 no";
  EXPECT_THAT(ReadQuestions(Named("piqa"), {folder.string()}).status().message(),
              HasSubstr("not whole bzip2"));
}

TEST(Question, AChoiceIsAFunctionOfTheSeed) {
  EXPECT_THAT(ChooseQuestions(3, 0, 1), ElementsAre(0, 1, 2));
  EXPECT_THAT(ChooseQuestions(3, 9, 1), ElementsAre(0, 1, 2));
  const std::vector<int> chosen = ChooseQuestions(1000, 100, 7);
  EXPECT_EQ(chosen, ChooseQuestions(1000, 100, 7));
  EXPECT_NE(chosen, ChooseQuestions(1000, 100, 8));
  EXPECT_EQ(chosen.size(), 100u);
  EXPECT_TRUE(std::is_sorted(chosen.begin(), chosen.end()));
  EXPECT_EQ(std::adjacent_find(chosen.begin(), chosen.end()), chosen.end());
  EXPECT_GT(chosen.back(), 800);
}

TEST(Question, ThePublicFilesAreWhole) {
  const char* data = std::getenv("LATENTD_TEST_DATA");
  if (data == nullptr) GTEST_SKIP() << "LATENTD_TEST_DATA is not set";
  const std::string root = data;
  const std::vector<std::string> folders = {root + "/zeroshot-llm-foundry",
                                            root + "/zeroshot-hellaswag"};
  const std::vector<std::pair<std::string, size_t>> counts = {
      {"piqa", 1838},       {"hellaswag", 10042}, {"arc_easy", 2376}, {"arc_challenge", 1172},
      {"winogrande", 1267}, {"openbookqa", 500},  {"lambada", 5153}};
  for (const auto& [name, count] : counts) {
    const auto questions = ReadQuestions(Named(name), folders);
    ASSERT_TRUE(questions.ok()) << questions.status();
    EXPECT_EQ(questions->size(), count) << name;
  }
}

}  // namespace
}  // namespace latentd
