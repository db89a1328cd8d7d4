#include "engine/compressor/palu.h"

#include <cmath>

#include "base/random.h"
#include "engine/compressor/hadamard.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

Matrix RandomMatrix(int rows, int cols, uint64_t seed) {
  Matrix out(rows, cols);
  for (size_t i = 0; i < out.values.size(); ++i) out.values[i] = RandomUniform(seed, i) - 0.5;
  return out;
}

// E[x x^T] of inputs whose directions differ a lot in energy.
Matrix RandomMoment(int n, uint64_t seed) {
  Matrix root = RandomMatrix(n, n, seed);
  for (int r = 0; r < n; ++r) {
    for (int c = 0; c < n; ++c) root.at(r, c) *= std::pow(0.8, c);
  }
  return Multiply(root, Transpose::kNo, root, Transpose::kYes);
}

// E|(W - A) x|^2 = trace((W - A) M (W - A)^T).
double Error(const Matrix& weight, const Matrix& approximation, const Matrix& moment) {
  Matrix difference = weight;
  for (size_t i = 0; i < difference.values.size(); ++i)
    difference.values[i] -= approximation.values[i];
  const Matrix energy =
      Multiply(Multiply(difference, moment), Transpose::kNo, difference, Transpose::kYes);
  double trace = 0;
  for (int i = 0; i < energy.rows; ++i) trace += energy.at(i, i);
  return trace;
}

TEST(Factorize, FullRankRebuildsTheWeight) {
  const Matrix weight = RandomMatrix(32, 48, 1);
  const auto factors = Factorize(weight, RandomMoment(48, 2), 32);
  ASSERT_TRUE(factors.ok());
  const Matrix product = Multiply(factors->up, factors->down);
  for (size_t i = 0; i < weight.values.size(); ++i)
    EXPECT_NEAR(product.values[i], weight.values[i], 1e-9);
  EXPECT_NEAR(factors->energy_kept, 1, 1e-12);
}

// The best error of rank r is the sum of the singular values squared that are left out
// (Eckart-Young, of W M^(1/2)); no factors reach less, and these reach it.
TEST(Factorize, ReachesTheLeastErrorOfItsRank) {
  const Matrix weight = RandomMatrix(32, 48, 3), moment = RandomMoment(48, 4);
  const auto eigen =
      SymmetricEigen(Multiply(Multiply(weight, moment), Transpose::kNo, weight, Transpose::kYes));
  ASSERT_TRUE(eigen.ok());
  for (int rank : {1, 5, 16, 31}) {
    const auto factors = Factorize(weight, moment, rank);
    ASSERT_TRUE(factors.ok());
    ASSERT_EQ(factors->down.rows, rank);
    double least = 0, total = 0;
    for (int i = 0; i < 32; ++i) (i < rank ? total : least) += eigen->values[i];
    total += least;
    const double error = Error(weight, Multiply(factors->up, factors->down), moment);
    EXPECT_NEAR(error / total, least / total, 1e-9) << rank;
    EXPECT_NEAR(factors->energy_kept, 1 - least / total, 1e-9) << rank;
  }
}

TEST(Factorize, InputsWithoutEnergyStayFinite) {
  const Matrix weight = RandomMatrix(16, 16, 5);
  Matrix moment(16, 16);
  moment.at(0, 0) = 1;
  const auto factors = Factorize(weight, moment, 16);
  ASSERT_TRUE(factors.ok());
  for (double value : factors->down.values) EXPECT_TRUE(std::isfinite(value));
  EXPECT_NEAR(Error(weight, Multiply(factors->up, factors->down), moment), 0, 1e-9);
}

TEST(Rotate, LeavesTheProductAsItWas) {
  auto factors = Factorize(RandomMatrix(64, 40, 6), RandomMoment(40, 7), 48);
  ASSERT_TRUE(factors.ok());
  const Matrix before = Multiply(factors->up, factors->down);
  Rotate(HadamardRotation(48), &*factors);
  const Matrix after = Multiply(factors->up, factors->down);
  for (size_t i = 0; i < before.values.size(); ++i)
    EXPECT_NEAR(before.values[i], after.values[i], 1e-9);
}

ModelConfig ConfigOf(int kv_heads, int head_dim) {
  ModelConfig config;
  config.num_kv_heads = kv_heads;
  config.head_dim = head_dim;
  return config;
}

TEST(PaluOptions, DimsAreTheNearestMultipleOf16) {
  const ModelConfig config = ConfigOf(3, 64);
  EXPECT_EQ(LatentDims({.rate = 0.5, .heads_per_group = 3}, config), 96);
  EXPECT_EQ(LatentDims({.rate = 0.3, .heads_per_group = 3}, config), 128);
  EXPECT_EQ(LatentDims({.rate = 0.5, .heads_per_group = 1}, config), 32);
  EXPECT_EQ(LatentDims({.rate = 0.99, .heads_per_group = 1}, config), 16);
  EXPECT_EQ(LatentDims({.rate = 0, .heads_per_group = 3}, config), 192);
}

TEST(PaluOptions, WrongValuesAreNamedWithWhatIsAllowed) {
  const ModelConfig config = ConfigOf(4, 64);
  EXPECT_TRUE(Validate({.heads_per_group = 2}, config).ok());
  EXPECT_THAT(Validate({.rate = 1, .heads_per_group = 2}, config).message(),
              HasSubstr("--rate is 1"));
  EXPECT_THAT(Validate({.rate = std::nan(""), .heads_per_group = 2}, config).message(),
              HasSubstr("--rate is nan"));
  EXPECT_THAT(Validate({.bits = 5, .heads_per_group = 2}, config).message(),
              HasSubstr("--bits is 5, allowed: 32"));
  EXPECT_THAT(Validate({.heads_per_group = 3}, config).message(), HasSubstr("--group is 3"));
  EXPECT_THAT(Validate({.heads_per_group = 0}, config).message(), HasSubstr("--group is 0"));
  EXPECT_THAT(Validate({.heads_per_group = 1}, ConfigOf(4, 8)).message(), HasSubstr("8 dims"));
}

}  // namespace
}  // namespace latentd
