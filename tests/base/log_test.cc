#include "base/log.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "spdlog/spdlog.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

TEST(LogTest, LinesHaveTimeLevelAndMessageFromTheLevelUp) {
  ::testing::internal::CaptureStderr();
  ASSERT_TRUE(SetUpLog("warn").ok());
  spdlog::info("quiet");
  spdlog::warn("cache is {} % full", 93);
  spdlog::default_logger()->flush();
  const std::string lines = ::testing::internal::GetCapturedStderr();
  EXPECT_THAT(lines, Not(HasSubstr("quiet")));
  EXPECT_THAT(lines, MatchesRegex("[0-9]+-[0-9]+-[0-9]+T[0-9]+:[0-9]+:[0-9]+\\.[0-9]+Z "
                                  "warn[a-z]* +cache is 93 % full\n"));
}

TEST(LogTest, AnUnknownLevelIsRefusedByName) {
  const absl::Status status = SetUpLog("loud");
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), HasSubstr("\"loud\""));
}

}  // namespace
}  // namespace latentd
