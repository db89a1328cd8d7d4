#include "engine/compressor/plane_factors.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/compressor/random_matrix.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

TEST(RotateSegments, LeavesTheProductAsItWas) {
  Factors factors{.down = RandomMatrix(48, 64, 1), .up = RandomMatrix(64, 48, 2)};
  const Matrix before = Multiply(factors.up, factors.down);
  RotateSegments({{16, Codec::kInt8}, {32, Codec::kInt2}}, &factors);
  const Matrix after = Multiply(factors.up, factors.down);
  for (size_t i = 0; i < before.values.size(); ++i)
    EXPECT_NEAR(before.values[i], after.values[i], 1e-12);
}

TEST(RotateSegments, MixesDimsInsideASegmentAlone) {
  Factors factors{.down = Matrix(48, 48), .up = RandomMatrix(48, 48, 3)};
  for (int i = 0; i < 48; ++i) factors.down.at(i, i) = 1;
  RotateSegments({{16, Codec::kInt8}, {32, Codec::kInt2}}, &factors);
  for (int r = 0; r < 48; ++r) {
    for (int c = 0; c < 48; ++c) {
      const bool together = (r < 16) == (c < 16);
      const double expected = !together ? 0 : r < 16 ? 0.25 : 1 / std::sqrt(32.0);
      EXPECT_NEAR(std::abs(factors.down.at(r, c)), expected, 1e-12) << r << " " << c;
    }
  }
}

TEST(PlaneFactors, EnergyKeptIsTheShareOfTheFirstDims) {
  PlaneFactors plane;
  plane.plane = {.latent_heads = 2, .segments = {{16, Codec::kInt4}}};
  plane.energy.assign(32, 2.0);
  EXPECT_DOUBLE_EQ(plane.EnergyKept(), 0.5);
}

TEST(HeadsPerGroup, ReadsWhatTheFlagSays) {
  EXPECT_EQ(*HeadsPerGroup("all", 6), 6);
  EXPECT_EQ(*HeadsPerGroup("2", 6), 2);
  EXPECT_EQ(*HeadsPerGroup("", 32), 4);  // the largest divisor up to 4, else all
  EXPECT_EQ(*HeadsPerGroup("", 6), 3);
  EXPECT_EQ(*HeadsPerGroup("", 5), 5);
  EXPECT_THAT(HeadsPerGroup("4", 6).status().message(), HasSubstr("--group is 4"));
  EXPECT_THAT(HeadsPerGroup("0", 6).status().message(), HasSubstr("--group is 0"));
  EXPECT_THAT(HeadsPerGroup("half", 6).status().message(), HasSubstr("\"half\""));
}

}  // namespace
}  // namespace latentd
