#include "engine/compressor/dense_algebra.h"

#include <cblas.h>

#include <cmath>
#include <numeric>

#include "gtest/gtest.h"
#include "tests/engine/checkpoint/tensor_values.h"
#include "tests/engine/compressor/tested_algebra.h"
#include "tests/testing/random_values.h"
#include "tests/testing/random_weight.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

// More than one tile each way, and a rest; outputs of more bytes than travel at once.
constexpr int64_t kRows = 2100, kOut = 1060, kIn = 40;

// One number of a product: the dot product of n numbers, so far apart.
double Dot(const float* a, int64_t a_step, const float* b, int64_t b_step, int64_t n) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) sum += double{a[i * a_step]} * b[i * b_step];
  return sum;
}

using DenseAlgebraTest = OpsTest;

TEST_F(DenseAlgebraTest, ProductsAndTheirGradientsForEveryNumberOfThreads) {
  const std::vector<float> weight = GaussianValues(kOut * kIn, 1), bias = GaussianValues(kOut, 2),
                           x = GaussianValues(kRows * kIn, 3),
                           before = GaussianValues(kRows * kOut, 4),
                           dout = GaussianValues(kRows * kOut, 5);
  std::vector<float> first, first_dx;
  for (const int threads : {1, 2, 5}) {
    const auto algebra = NewAlgebra(threads);
    DenseLinear linear;
    ASSERT_TRUE(algebra->LoadWeight(ViewOf(weight, kIn), &linear).ok());
    std::vector<float> plain(kRows * kOut), out(kRows * kOut), added = before, dx(kRows * kIn);
    algebra->Product(x.data(), kRows, linear, /*accumulate=*/false, plain.data());
    linear.bias = bias;
    algebra->Product(x.data(), kRows, linear, /*accumulate=*/false, out.data());
    algebra->Product(x.data(), kRows, linear, /*accumulate=*/true, added.data());
    algebra->ProductBackward(dout.data(), kRows, linear, /*accumulate=*/false, dx.data());
    std::vector<float> twice = dx;
    algebra->ProductBackward(dout.data(), kRows, linear, /*accumulate=*/true, twice.data());
    ASSERT_TRUE(algebra->status().ok()) << algebra->status();
    if (threads == 1) {
      for (int64_t i = 0; i < kRows * kOut; i += 71) {
        const double product = Dot(&x[i / kOut * kIn], 1, &weight[i % kOut * kIn], 1, kIn);
        ASSERT_NEAR(plain[i], product, 1e-4) << i;
        ASSERT_NEAR(out[i], product + bias[i % kOut], 1e-4) << i;
        ASSERT_NEAR(added[i], product + bias[i % kOut] + before[i], 1e-4) << i;
      }
      for (int64_t i = 0; i < kRows * kIn; i += 71) {
        const double slope = Dot(&dout[i / kIn * kOut], 1, &weight[i % kIn], kIn, kOut);
        ASSERT_NEAR(dx[i], slope, 5e-4) << i;
        ASSERT_NEAR(twice[i], 2 * slope, 1e-3) << i;
      }
      first = out;
      first_dx = dx;
    }
    EXPECT_EQ(out, first);
    EXPECT_EQ(dx, first_dx);
  }
}

TEST_F(DenseAlgebraTest, GradientsByAWeight) {
  constexpr int64_t kTokens = 70, kDims = 530;
  const std::vector<float> dout = GaussianValues(kTokens * kDims, 1),
                           x = GaussianValues(kTokens * kOut, 2);
  const auto algebra = NewAlgebra(2);
  std::vector<float> gradient(kDims * kOut, NAN);
  algebra->WeightGradient(dout.data(), kDims, x.data(), kOut, kTokens, gradient.data());
  ASSERT_TRUE(algebra->status().ok()) << algebra->status();
  for (int64_t i = 0; i < kDims * kOut; ++i) {
    ASSERT_NEAR(gradient[i], Dot(&dout[i / kOut], kDims, &x[i % kOut], kOut, kTokens), 1e-4) << i;
  }
}

// To the bits of double: small differences of large moments decide what is cut.
TEST_F(DenseAlgebraTest, MomentsAreAddedInDouble) {
  constexpr int64_t kTokens = 90;
  const std::vector<float> x = GaussianValues(kTokens * kOut, 1), y = GaussianValues(5 * 7, 2);
  Matrix large(kOut, kOut), small(7, 7);
  large.values = std::vector<double>(kOut * kOut, 3);
  const auto algebra = NewAlgebra(2);
  algebra->AddMoments({{x.data(), kTokens, &large}, {y.data(), 5, &small}});
  algebra->AddMoments({{y.data(), 5, &small}});
  ASSERT_TRUE(algebra->status().ok()) << algebra->status();
  for (int r = 0; r < kOut; r += 3) {
    for (int c = r; c < kOut; ++c) {
      ASSERT_NEAR(large.at(r, c), 3 + Dot(&x[r], kOut, &x[c], kOut, kTokens), 1e-12 * kTokens);
    }
  }
  for (int r = 0; r < 7; ++r) {
    for (int c = r; c < 7; ++c) {
      ASSERT_NEAR(small.at(r, c), 2 * Dot(&y[r], 7, &y[c], 7, 5), 1e-12);
    }
  }
}

TEST_F(DenseAlgebraTest, GivesTheLibrarysThreadsBack) {
  openblas_set_num_threads(2);
  {
    const auto algebra = NewAlgebra(1);
    EXPECT_EQ(openblas_get_num_threads(), 1);
  }
  EXPECT_EQ(openblas_get_num_threads(), 2);
}

TEST_F(DenseAlgebraTest, LoadsWeightsAndTheBiasesThatThereAre) {
  const auto checkpoint =
      Checkpoint::Open(WriteTinyModel({.family = "qwen2", .dtype = DType::kF16}));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const auto algebra = NewAlgebra(2);
  DenseLinear linear;
  for (int again = 0; again < 2; ++again) {
    ASSERT_TRUE(algebra->Load(**checkpoint, "layers.1.k", &linear).ok());
    EXPECT_EQ(linear.out, 32);
    EXPECT_EQ(WeightOf(*algebra, linear), ValuesOf(**checkpoint, "layers.1.k.weight"));
    EXPECT_EQ(linear.bias, ValuesOf(**checkpoint, "layers.1.k.bias"));
    ASSERT_TRUE(algebra->Load(**checkpoint, "layers.1.o", &linear).ok());
    EXPECT_EQ(WeightOf(*algebra, linear), ValuesOf(**checkpoint, "layers.1.o.weight"));
    EXPECT_TRUE(linear.bias.empty());
  }
  EXPECT_EQ(algebra->Load(**checkpoint, "layers.2.k", &linear),
            absl::NotFoundError("the model has no tensor layers.2.k.weight"));
}

// Some rows of a tensor are another weight than all of them.
TEST_F(DenseAlgebraTest, LoadsEveryStoredTypeAndPartsOfATensor) {
  const auto algebra = NewAlgebra(2);
  for (const DType dtype : kAllDTypes) {
    const RandomWeight weight(dtype, 30, 256, 1);
    TensorView view = weight.view();
    for (const int64_t rows : {30, 20}) {
      view.rows = rows;
      std::vector<float> values(rows * view.cols);
      for (int64_t r = 0; r < rows; ++r) {
        DequantizeRow(view, r, absl::MakeSpan(values).subspan(r * view.cols, view.cols));
      }
      DenseLinear linear;
      ASSERT_TRUE(algebra->LoadWeight(view, &linear).ok());
      EXPECT_EQ(WeightOf(*algebra, linear), values) << Info(dtype).name << " " << rows;
    }
  }
}

}  // namespace
}  // namespace latentd
