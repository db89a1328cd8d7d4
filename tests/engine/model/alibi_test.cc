#include "engine/model/alibi.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatEq;

TEST(AlibiSlopes, AreAGeometricSequenceForPowersOfTwo) {
  EXPECT_THAT(AlibiSlopes(1, 8), ElementsAre(FloatEq(1.0f / 256)));
  EXPECT_THAT(AlibiSlopes(8, 8), ElementsAre(1.0f / 2, 1.0f / 4, 1.0f / 8, 1.0f / 16, 1.0f / 32,
                                             1.0f / 64, 1.0f / 128, 1.0f / 256));
  EXPECT_THAT(AlibiSlopes(2, 4), ElementsAre(1.0f / 4, 1.0f / 16));
}

// Hugging Face transformers, build_alibi_tensor of BLOOM, 6 and 12 heads.
TEST(AlibiSlopes, OtherCountsTakeEverySecondSlopeOfTwiceThePower) {
  EXPECT_THAT(AlibiSlopes(6, 8), ElementsAre(0.25f, 0.0625f, 0.015625f, 0.00390625f, 0.5f, 0.125f));
  const std::vector<float> slopes = AlibiSlopes(12, 8);
  ASSERT_EQ(slopes.size(), 12u);
  EXPECT_EQ(slopes[7], 1.0f / 256);
  EXPECT_FLOAT_EQ(slopes[8], std::exp2(-0.5f));
  EXPECT_FLOAT_EQ(slopes[9], std::exp2(-1.5f));
  EXPECT_FLOAT_EQ(slopes[11], std::exp2(-3.5f));
}

}  // namespace
}  // namespace latentd
