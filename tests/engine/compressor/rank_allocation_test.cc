#include "engine/compressor/rank_allocation.h"

#include <numeric>

#include "base/random.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

int Sum(const std::vector<int>& ranks) { return std::accumulate(ranks.begin(), ranks.end(), 0); }

TEST(AllocateRanks, MeetsTheBudgetInsideTheBounds) {
  for (uint64_t seed = 0; seed < 20; ++seed) {
    std::vector<double> importance(60);
    for (size_t i = 0; i < importance.size(); ++i) {
      const double u = RandomUniform(seed, i);
      importance[i] = u * u * u * 100;
    }
    for (const double rate : {0.0, 0.3, 0.5, 0.7, 0.9}) {
      const double total = 60 * 192 * (1 - rate);
      const std::vector<int> ranks = AllocateRanks(importance, 192, total);
      EXPECT_NEAR(Sum(ranks), total, 8) << "half a tile of " << total;
      for (const int rank : ranks) {
        EXPECT_GE(rank, 16);
        EXPECT_LE(rank, 192);
        EXPECT_EQ(rank % 16, 0);
      }
    }
  }
}

TEST(AllocateRanks, SharesInProportion) {
  EXPECT_EQ(AllocateRanks({1, 2, 3, 4}, 256, 320), (std::vector<int>{32, 64, 96, 128}));
  EXPECT_EQ(AllocateRanks({10, 20, 30, 40}, 256, 320), (std::vector<int>{32, 64, 96, 128}));
}

TEST(AllocateRanks, HandsOnWhatAFullPlaneCannotTake) {
  // In proportion the last would take 400; its 272 beyond full go to the others in proportion.
  EXPECT_EQ(AllocateRanks({1, 2, 3, 30}, 128, 224), (std::vector<int>{16, 32, 48, 128}));
  // A plane without importance has the least, until nothing else is left to fill.
  EXPECT_EQ(AllocateRanks({0, 1}, 128, 112), (std::vector<int>{16, 96}));
  EXPECT_EQ(AllocateRanks({0, 1}, 128, 192), (std::vector<int>{64, 128}));
}

TEST(AllocateRanks, AlikeMeansEvenlySpread) {
  EXPECT_EQ(AllocateRanks({5, 5, 5, 5}, 64, 128), (std::vector<int>{32, 32, 32, 32}));
  EXPECT_EQ(AllocateRanks({0, 0, 0, 0}, 64, 96), (std::vector<int>{32, 16, 32, 16}));
}

}  // namespace
}  // namespace latentd
