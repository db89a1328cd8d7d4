#include "base/progress.h"

#include <algorithm>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

TEST(ProgressLineTest, OffATerminalALineComesEveryTenth) {
  ::testing::internal::CaptureStderr();
  {
    ProgressLine progress("calibrating");
    for (int i = 0; i <= 1000; ++i) progress.Show(i / 1000.0);
  }
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_EQ(std::count(lines.begin(), lines.end(), '\n'), 11) << lines;
  EXPECT_THAT(lines, HasSubstr("calibrating:   0 %\n"));  // nothing is known of the time yet
  EXPECT_THAT(lines, HasSubstr("calibrating:  50 %, "));
  EXPECT_THAT(lines, HasSubstr("calibrating: 100 %"));
}

}  // namespace
}  // namespace latentd
