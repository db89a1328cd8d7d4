#include "base/progress.h"

#include <algorithm>
#include <chrono>
#include <thread>

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

// Half of the work was there before, and took no time now.
TEST(ProgressLineTest, WorkThatIsTakenUpCountsFromThere) {
  ::testing::internal::CaptureStderr();
  {
    ProgressLine progress("calibrating");
    progress.Show(0.5);
    std::this_thread::sleep_for(std::chrono::milliseconds(1100));
    progress.Show(0.6);  // a fifth of the rest
  }
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(lines, HasSubstr("calibrating:  50 %\n"));
  EXPECT_THAT(lines, HasSubstr("calibrating:  60 %, 1 s, 4 s left"));
}

}  // namespace
}  // namespace latentd
