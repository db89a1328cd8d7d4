#include "engine/cache_pool.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <set>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/dtype.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

const std::vector<CacheLayer> kLayers(2, FullCacheLayer(1, 16));
constexpr int64_t kBlockBytes = int64_t{2} * 2 * 16 * 2 * kBlockTokens;

TEST(CachePoolTest, TheLargestLayoutFillsTheLimit) {
  const auto layout = LargestLayout(kLayers, 3, {.bytes = 5 * kBlockBytes - 1});
  ASSERT_TRUE(layout.ok()) << layout.status();
  EXPECT_EQ(layout->num_blocks(), 4);
  EXPECT_EQ(layout->num_sequences(), 3);
}

TEST(CachePoolTest, ALimitThatIsTooSmallGivesItsReason) {
  for (const int64_t bytes : {int64_t{-7}, int64_t{0}, kBlockBytes - 1}) {
    const absl::Status status =
        LargestLayout(kLayers, 1, {.bytes = bytes, .reason = "--flag is x"}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("--flag is x, the smallest cache takes 8192"));
  }
}

// Whatever a layout takes two bytes for: small, finite, and not the same in every block.
TEST(CachePoolTest, RandomNumbersAreFiniteAndDifferBetweenBlocks) {
  const auto device = CreateHostDevice();
  const auto pool = *DeviceArray<uint8_t>::Create(*device, 300 * kBlockBytes + 2);
  ASSERT_TRUE(RandomizePool(*device, pool).ok());
  for (int64_t i = 0; i + 1 < pool.size(); ++i) {
    uint16_t half;
    std::memcpy(&half, pool.data() + i, sizeof(half));
    const float value = std::abs(HalfToFloat(half));
    ASSERT_TRUE(value >= 0x1p-7f && value < 1) << "byte " << i << ": " << value;
  }
  std::set<std::vector<uint8_t>> blocks;
  for (int b = 0; b < 300; ++b) {
    blocks.insert({pool.data() + b * kBlockBytes, pool.data() + (b + 1) * kBlockBytes});
  }
  EXPECT_EQ(blocks.size(), 300u);
}

}  // namespace
}  // namespace latentd
