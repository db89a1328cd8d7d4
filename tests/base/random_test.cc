#include "base/random.h"

#include <array>
#include <set>

#include "gtest/gtest.h"

namespace latentd {
namespace {

TEST(RandomTest, CountersWalkThePublishedSequenceInAnyOrder) {
  // The seed whose first mix is 1234567, the state from which SplitMix64's published test values
  // start.
  constexpr uint64_t kSeed = 11906536674387683726u;
  EXPECT_EQ(RandomBits(kSeed, 1), 3203168211198807973u);
  EXPECT_EQ(RandomBits(kSeed, 0), 6457827717110365317u);
}

TEST(RandomTest, NeighbouringSeedsAndCountersDoNotCollide) {
  std::set<uint64_t> seen;
  for (uint64_t seed = 0; seed < 64; ++seed) {
    for (uint64_t counter = 0; counter < 64; ++counter) seen.insert(RandomBits(seed, counter));
  }
  EXPECT_EQ(seen.size(), 64u * 64u);
}

TEST(RandomTest, UniformFillsItsIntervalEvenly) {
  // 16 bins of 65,536 draws: chi squared with 15 degrees of freedom, 99.9 % of honest generators
  // stay below 37.7.
  std::array<int, 16> bins{};
  for (uint64_t i = 0; i < 65536; ++i) {
    const float u = RandomUniform(42, i);
    ASSERT_GE(u, 0.0f);
    ASSERT_LT(u, 1.0f);
    ++bins[static_cast<int>(u * 16)];
  }
  double chi_squared = 0;
  for (int count : bins) chi_squared += (count - 4096.0) * (count - 4096.0) / 4096.0;
  EXPECT_LT(chi_squared, 37.7);
}

}  // namespace
}  // namespace latentd
