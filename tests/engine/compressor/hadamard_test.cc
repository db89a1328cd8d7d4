#include "engine/compressor/hadamard.h"

#include <cmath>

#include "gtest/gtest.h"

namespace latentd {
namespace {

double LargestDeviationFromIdentity(const Matrix& product) {
  double largest = 0;
  for (int r = 0; r < product.rows; ++r) {
    for (int c = 0; c < product.cols; ++c) {
      largest = std::max(largest, std::abs(product.at(r, c) - (r == c ? 1.0 : 0.0)));
    }
  }
  return largest;
}

TEST(HadamardRotation, IsOrthonormalForEveryOrder) {
  for (int n = 1; n <= 100; ++n) {
    const Matrix h = HadamardRotation(n);
    EXPECT_LT(LargestDeviationFromIdentity(Multiply(h, Transpose::kNo, h, Transpose::kYes)), 1e-12)
        << n;
  }
}

TEST(HadamardRotation, SpreadsOneDimEvenlyOverAllForMultiplesOf16UpTo256) {
  for (int n = 16; n <= 256; n += 16) {
    const Matrix h = HadamardRotation(n);
    for (double value : h.values) EXPECT_NEAR(std::abs(value), 1 / std::sqrt(n), 1e-12) << n;
    EXPECT_LT(LargestDeviationFromIdentity(Multiply(h, Transpose::kNo, h, Transpose::kYes)), 1e-12)
        << n;
  }
}

TEST(HadamardRotation, TurnsTheFirstDimIntoACommonOffset) {
  for (int n = 16; n <= 256; n += 16) {
    const Matrix h = HadamardRotation(n);
    for (int r = 0; r < n; ++r) EXPECT_GT(h.at(r, 0), 0) << n;
  }
}

}  // namespace
}  // namespace latentd
