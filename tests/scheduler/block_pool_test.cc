#include "scheduler/block_pool.h"

#include <gtest/gtest.h>

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
