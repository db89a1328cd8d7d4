#include "scheduler/block_pool.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "base/random.h"

namespace latentd {
namespace {

TEST(BlockPoolTest, BlocksForRoundsUp) {
  EXPECT_EQ(BlocksFor(0), 0);
  EXPECT_EQ(BlocksFor(1), 1);
  EXPECT_EQ(BlocksFor(64), 1);
  EXPECT_EQ(BlocksFor(65), 2);
}

// By definition: what the tokens of a window touch, wherever it lies.
TEST(BlockPoolTest, MostBlocksForIsTheMostThatAWindowTouches) {
  for (const int window : {1, 2, 63, 64, 65, 66, 128, 129, 130, 200}) {
    int64_t most = 0;
    for (int64_t n = 1; n < 600; ++n) {
      const int64_t first_seen = std::max<int64_t>(0, n - window);
      most = std::max(most, BlocksFor(n) - first_seen / 64);
      EXPECT_GE(MostBlocksFor(n, window), most) << window << " " << n;
    }
    EXPECT_EQ(MostBlocksFor(600, window), most) << window;
  }
  EXPECT_EQ(MostBlocksFor(65, 1000), 2);
  EXPECT_EQ(MostBlocksFor(600, 0), 10);
}

TEST(BlockPoolTest, TakesBackOneBlockAndPassesOverThoseGivenBack) {
  BlockPool pool(4);
  std::vector<int32_t> blocks;
  pool.Allocate(3, &blocks);
  pool.Release(blocks[0]);
  blocks[0] = -1;
  EXPECT_EQ(pool.used(), 2);
  pool.Release(&blocks);
  EXPECT_EQ(pool.used(), 0);
  EXPECT_DEATH(pool.Release(0), "");
}

TEST(BlockPoolTest, AllocatesAllOrNothing) {
  BlockPool pool(3);
  std::vector<int32_t> blocks = {7};
  EXPECT_FALSE(pool.Allocate(4, &blocks));
  EXPECT_EQ(blocks, std::vector<int32_t>{7});
  EXPECT_EQ(pool.free(), 3);
  blocks.clear();
  EXPECT_TRUE(pool.Allocate(3, &blocks));
  EXPECT_EQ(std::set<int32_t>(blocks.begin(), blocks.end()), (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(pool.used(), 3);
  EXPECT_FALSE(pool.Allocate(1, &blocks));
}

TEST(BlockPoolTest, TheLatestReleasedComeFirst) {
  BlockPool pool(8);
  std::vector<int32_t> a, b, c;
  pool.Allocate(2, &a);
  pool.Allocate(2, &b);
  const std::vector<int32_t> released = a;
  pool.Release(&a);
  EXPECT_TRUE(a.empty());
  pool.Allocate(2, &c);
  EXPECT_EQ(c, released);
}

TEST(BlockPoolTest, RandomUseKeepsTheCount) {
  BlockPool pool(50);
  std::vector<std::vector<int32_t>> held(10);
  for (int i = 0; i < 10'000; ++i) {
    auto& blocks = held[RandomBits(1, i) % held.size()];
    if (RandomBits(2, i) % 3 == 0) {
      pool.Release(&blocks);
    } else {
      pool.Allocate(1 + RandomBits(3, i) % 4, &blocks);
    }
    std::set<int32_t> distinct;
    size_t count = 0;
    for (const auto& h : held) {
      distinct.insert(h.begin(), h.end());
      count += h.size();
    }
    ASSERT_EQ(distinct.size(), count);
    ASSERT_EQ(pool.used(), static_cast<int64_t>(count));
    ASSERT_EQ(pool.used() + pool.free(), pool.total());
  }
}

TEST(BlockPoolDeathTest, DoubleReleaseAborts) {
  BlockPool pool(4);
  std::vector<int32_t> blocks;
  pool.Allocate(2, &blocks);
  std::vector<int32_t> again = blocks;
  pool.Release(&blocks);
  EXPECT_DEATH(pool.Release(&again), "in_use_");
}

}  // namespace
}  // namespace latentd
