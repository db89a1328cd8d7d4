#include "engine/text/shingles.h"

#include <algorithm>

#include "base/random.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

using Windows = std::vector<std::vector<int32_t>>;

std::vector<int32_t> RandomText(uint64_t seed, int tokens) {
  std::vector<int32_t> text(tokens);
  for (int i = 0; i < tokens; ++i) text[i] = static_cast<int32_t>(RandomBits(seed, i) % 50000);
  return text;
}

TEST(Shingles, AreAscendingAndOneInEightOfTheRuns) {
  const std::vector<uint32_t> shingles = ShinglesOf(Windows{RandomText(1, 20000)});
  EXPECT_NEAR(static_cast<double>(shingles.size()), 20000 / 8.0, 200);
  EXPECT_TRUE(std::is_sorted(shingles.begin(), shingles.end()));
  EXPECT_EQ(std::adjacent_find(shingles.begin(), shingles.end()), shingles.end());
}

TEST(Shingles, ARunIsKnownWhereverItStands) {
  const std::vector<int32_t> calibration = RandomText(1, 1024);
  std::vector<int32_t> text = RandomText(2, 5000);
  std::copy(calibration.begin() + 100, calibration.begin() + 612, text.begin() + 333);
  const std::vector<uint32_t> shingles = ShinglesOf(Windows{RandomText(3, 999), calibration});
  const ShingleOverlap overlap = CountShared(Windows{text}, shingles);
  EXPECT_EQ(overlap.total, static_cast<int64_t>(ShinglesOf(Windows{text}).size()));
  const std::vector<int32_t> copied(calibration.begin() + 100, calibration.begin() + 612);
  EXPECT_EQ(overlap.shared, static_cast<int64_t>(ShinglesOf(Windows{copied}).size()));
  EXPECT_GT(overlap.shared, 40);
  EXPECT_TRUE(overlap.same_text());
}

TEST(Shingles, OtherTextsShareNone) {
  const std::vector<uint32_t> shingles = ShinglesOf(Windows{RandomText(1, 50000)});
  const ShingleOverlap overlap = CountShared(Windows{RandomText(2, 50000)}, shingles);
  EXPECT_LE(overlap.shared, 1);
  EXPECT_FALSE(overlap.same_text());
}

TEST(Shingles, TheOrderOfTheTokensCounts) {
  std::vector<int32_t> text = RandomText(1, 2000);
  const std::vector<uint32_t> shingles = ShinglesOf(Windows{text});
  std::reverse(text.begin(), text.end());
  EXPECT_EQ(CountShared(Windows{text}, shingles).shared, 0);
}

TEST(Shingles, RunsEndWithTheirWindowAndShortOnesHaveNone) {
  const std::vector<int32_t> text = RandomText(1, 4000);
  Windows pieces;
  for (int i = 0; i < 4000; i += kShingleTokens - 1) {
    pieces.emplace_back(text.begin() + i,
                        text.begin() + std::min<int>(4000, i + kShingleTokens - 1));
  }
  EXPECT_TRUE(ShinglesOf(pieces).empty());
  EXPECT_TRUE(ShinglesOf({}).empty());
  EXPECT_FALSE(CountShared(pieces, {}).same_text());
}

TEST(Shingles, ARepeatedRunCountsOnce) {
  const std::vector<int32_t> same(5000, 7);
  EXPECT_LE(ShinglesOf(Windows{same}).size(), 1u);
}

}  // namespace
}  // namespace latentd
