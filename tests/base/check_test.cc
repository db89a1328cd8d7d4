#include "base/check.h"

#include "gtest/gtest.h"

namespace latentd {
namespace {

TEST(CheckTest, FalseAbortsAndNamesTheCondition) {
  const int blocks = 3;
  EXPECT_DEATH(LATENTD_CHECK(blocks == 4), "check_test.cc:[0-9]+: check failed: blocks == 4");
}

TEST(CheckTest, TrueEvaluatesItsConditionOnce) {
  int calls = 0;
  LATENTD_CHECK(++calls == 1);
  EXPECT_EQ(calls, 1);
}

}  // namespace
}  // namespace latentd
