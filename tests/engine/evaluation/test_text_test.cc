#include "engine/evaluation/test_text.h"

#include <numeric>

#include "engine/text/shingles.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

std::vector<int32_t> CountingIds(int first, int count) {
  std::vector<int32_t> ids(count);
  std::iota(ids.begin(), ids.end(), first);
  return ids;
}

TEST(TestText, TheCalibrationsOwnTextIsRefused) {
  const std::vector<int32_t> seen = CountingIds(0, 2000), other = CountingIds(5000, 2000);
  Latents latents;
  latents.shingles = ShinglesOf({seen});
  // A later part of the same text, cut elsewhere.
  const TextWindow overlapping{.tokens = absl::MakeConstSpan(seen).subspan(700)};
  const absl::Status refused = CheckOverlap({overlapping}, &latents, "--text wiki.txt", false);
  EXPECT_EQ(refused.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(refused.message(), HasSubstr("--text wiki.txt shares "));
  EXPECT_THAT(refused.message(), HasSubstr("--allow-overlap"));
  EXPECT_TRUE(CheckOverlap({overlapping}, &latents, "--text wiki.txt", true).ok());
  EXPECT_TRUE(CheckOverlap({overlapping}, nullptr, "--text wiki.txt", false).ok());
  EXPECT_TRUE(CheckOverlap({{.tokens = other}}, &latents, "--text wiki.txt", false).ok());
}

TEST(TestText, WhatIsWrongWithTheFlagsAloneIsNamed) {
  EXPECT_THAT(CheckTestTextFlags({}).message(), HasSubstr("--text is missing"));
  EXPECT_THAT(CheckTestTextFlags({.text = "t", .count = "half"}).message(),
              HasSubstr("--count is \"half\", allowed: all, second-half"));
  EXPECT_THAT(
      CheckTestTextFlags({.text = "t", .count = "second-half", .windows = {.stride = 4}}).message(),
      HasSubstr("--stride is 4 and --count is second-half"));
  EXPECT_TRUE(CheckTestTextFlags({.text = "t", .windows = {.stride = 4}}).ok());
}

}  // namespace
}  // namespace latentd
