#include "engine/compressor/matrix.h"

#include <cmath>

#include "base/random.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

TEST(Matrix, TheSelfCheckPassesHere) { EXPECT_TRUE(CheckLinearAlgebra().ok()); }

TEST(Matrix, MultipliesTransposesAsDefined) {
  Matrix a(2, 3), b(2, 4);
  for (size_t i = 0; i < a.values.size(); ++i) a.values[i] = i + 1;
  for (size_t i = 0; i < b.values.size(); ++i) b.values[i] = 2.0 * i - 3;
  const Matrix product = Multiply(a, Transpose::kYes, b, Transpose::kNo);
  ASSERT_EQ(product.rows, 3);
  ASSERT_EQ(product.cols, 4);
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 4; ++c)
      EXPECT_EQ(product.at(r, c), a.at(0, r) * b.at(0, c) + a.at(1, r) * b.at(1, c));
  }
}

TEST(Matrix, MomentsAddUpOverChunks) {
  std::vector<float> x(5 * 3);
  for (size_t i = 0; i < x.size(); ++i) x[i] = RandomUniform(7, i) - 0.5f;
  Matrix whole(3, 3), parts(3, 3);
  AddMoment(x.data(), 5, &whole);
  AddMoment(x.data(), 2, &parts);
  AddMoment(x.data() + 6, 3, &parts);
  MirrorUpperTriangle(&whole);
  MirrorUpperTriangle(&parts);
  for (int r = 0; r < 3; ++r) {
    for (int c = 0; c < 3; ++c) {
      EXPECT_NEAR(whole.at(r, c), parts.at(r, c), 1e-12);
      EXPECT_EQ(whole.at(r, c), whole.at(c, r));
    }
  }
}

TEST(Matrix, EigenvaluesComeFromTheLargestDown) {
  Matrix diagonal(3, 3);
  diagonal.at(0, 0) = 2;
  diagonal.at(1, 1) = 5;
  diagonal.at(2, 2) = -1;
  const auto eigen = SymmetricEigen(diagonal);
  ASSERT_TRUE(eigen.ok());
  EXPECT_EQ(eigen->values, (std::vector<double>{5, 2, -1}));
  EXPECT_EQ(std::abs(eigen->vectors.at(1, 0)), 1);
}

TEST(BetterCoreType, IsForProcessorsThatTheLibraryDoesNotKnow) {
  EXPECT_EQ(BetterCoreType("SkylakeX", true, true), "");
  EXPECT_EQ(BetterCoreType("Prescott", false, false), "");  // it may well be one
  EXPECT_EQ(BetterCoreType("Prescott", true, false), "HASWELL");
  EXPECT_EQ(BetterCoreType("Prescott", true, true), "SKYLAKEX");
}

}  // namespace
}  // namespace latentd
