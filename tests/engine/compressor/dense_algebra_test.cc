#include "engine/compressor/dense_algebra.h"

#include <cblas.h>

#include <cmath>

#include "gtest/gtest.h"
#include "tests/engine/checkpoint/tensor_values.h"
#include "tests/testing/random_values.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

// More than one tile each way, and a rest.
constexpr int64_t kRows = 600, kOut = 1060, kIn = 40;

double Entry(const std::vector<float>& a, int64_t row, const std::vector<float>& b, int64_t col,
             int64_t k, bool b_by_rows) {
  double sum = 0;
  for (int64_t i = 0; i < k; ++i) {
    sum += double{a[row * k + i]} * (b_by_rows ? b[col * k + i] : b[i * kIn + col]);
  }
  return sum;
}

TEST(DenseAlgebra, ProductsAndTheirGradientsForEveryNumberOfThreads) {
  const DenseLinear linear{.out = kOut,
                           .in = kIn,
                           .weight = GaussianValues(kOut * kIn, 1),
                           .bias = GaussianValues(kOut, 2)};
  const std::vector<float> x = GaussianValues(kRows * kIn, 3),
                           before = GaussianValues(kRows * kOut, 4),
                           dout = GaussianValues(kRows * kOut, 5);
  std::vector<float> first, first_dx;
  for (const int threads : {1, 2, 5}) {
    DenseAlgebra algebra(threads);
    std::vector<float> out(kRows * kOut), added = before, dx(kRows * kIn);
    algebra.Product(x.data(), kRows, linear, /*accumulate=*/false, out.data());
    algebra.Product(x.data(), kRows, linear, /*accumulate=*/true, added.data());
    algebra.ProductBackward(dout.data(), kRows, linear, /*accumulate=*/false, dx.data());
    std::vector<float> twice = dx;
    algebra.ProductBackward(dout.data(), kRows, linear, /*accumulate=*/true, twice.data());
    if (threads == 1) {
      for (int64_t i = 0; i < kRows * kOut; i += 71) {
        const double product =
            Entry(x, i / kOut, linear.weight, i % kOut, kIn, true) + linear.bias[i % kOut];
        ASSERT_NEAR(out[i], product, 1e-4) << i;
        ASSERT_NEAR(added[i], product + before[i], 1e-4) << i;
      }
      for (int64_t i = 0; i < kRows * kIn; i += 71) {
        const double slope = Entry(dout, i / kIn, linear.weight, i % kIn, kOut, false);
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

TEST(DenseAlgebra, GivesTheLibrarysThreadsBack) {
  openblas_set_num_threads(2);
  {
    const DenseAlgebra algebra(1);
    EXPECT_EQ(openblas_get_num_threads(), 1);
  }
  EXPECT_EQ(openblas_get_num_threads(), 2);
}

TEST(DenseAlgebra, LoadsWeightsAndTheBiasesThatThereAre) {
  const auto checkpoint =
      Checkpoint::Open(WriteTinyModel({.family = "qwen2", .dtype = DType::kF16}));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  DenseAlgebra algebra(2);
  DenseLinear linear;
  ASSERT_TRUE(algebra.Load(**checkpoint, "layers.1.k", &linear).ok());
  EXPECT_EQ(linear.out, 32);
  EXPECT_EQ(linear.weight, ValuesOf(**checkpoint, "layers.1.k.weight"));
  EXPECT_EQ(linear.bias, ValuesOf(**checkpoint, "layers.1.k.bias"));
  ASSERT_TRUE(algebra.Load(**checkpoint, "layers.1.o", &linear).ok());
  EXPECT_TRUE(linear.bias.empty());
  EXPECT_EQ(algebra.Load(**checkpoint, "layers.2.k", &linear),
            absl::NotFoundError("the model has no tensor layers.2.k.weight"));
}

}  // namespace
}  // namespace latentd
