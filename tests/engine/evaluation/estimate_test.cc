#include "engine/evaluation/estimate.h"

#include <cmath>

#include "gtest/gtest.h"

namespace latentd {
namespace {

TEST(Estimate, IsTheMeanWithItsStandardError) {
  const Estimate e = MeanOf({1, 0, 0, 1, 1});
  EXPECT_DOUBLE_EQ(e.mean, 0.6);
  EXPECT_DOUBLE_EQ(e.standard_error, std::sqrt(0.6 * 0.4 / 4));  // n - 1, as the harness has it
  EXPECT_EQ(e.count, 5);
  EXPECT_EQ(MeanOf({3}).standard_error, 0.0);
}

TEST(Estimate, TasksWeighAlikeInTheAverage) {
  const Estimate e = AverageOf({{.mean = 0.2, .standard_error = 0.03, .count = 10},
                                {.mean = 0.6, .standard_error = 0.04, .count = 1000}});
  EXPECT_DOUBLE_EQ(e.mean, 0.4);
  EXPECT_DOUBLE_EQ(e.standard_error, 0.025);
}

TEST(Estimate, PairedDifferencesAreOverWhatBothHave) {
  ItemsFile mine, theirs;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(mine.Add({"t", i}, {{"acc", i % 2}}).ok());
    if (i == 0) continue;
    ASSERT_TRUE(theirs.Add({"t", i}, {{"acc", i == 2 ? 1 : i % 2}}).ok());
  }
  EXPECT_DOUBLE_EQ(FieldMean(mine, nullptr, "t", {0, 1, 2, 3}, "acc")->mean, 0.5);
  const auto difference = FieldMean(mine, &theirs, "t", {0, 1, 2, 3, 4}, "acc");
  ASSERT_TRUE(difference.has_value());
  EXPECT_EQ(difference->count, 4);
  EXPECT_DOUBLE_EQ(difference->mean, -0.25);           // 0 -1 0 0
  EXPECT_DOUBLE_EQ(difference->standard_error, 0.25);  // sqrt(.75 / 3 / 4)
  EXPECT_FALSE(FieldMean(mine, nullptr, "t", {0}, "acc_norm").has_value());
  EXPECT_FALSE(FieldMean(mine, nullptr, "u", {0}, "acc").has_value());
}

}  // namespace
}  // namespace latentd
