#include "engine/model/hadamard.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "gtest/gtest.h"

namespace latentd {
namespace {

// Largest entry of |h h^T - I|.
double DeviationFromOrthonormal(const std::vector<double>& h, int n) {
  double largest = 0;
  for (int r = 0; r < n; ++r) {
    for (int c = 0; c < n; ++c) {
      double sum = r == c ? -1.0 : 0.0;
      for (int i = 0; i < n; ++i) sum += h[r * n + i] * h[c * n + i];
      largest = std::max(largest, std::abs(sum));
    }
  }
  return largest;
}

TEST(HadamardRotation, IsOrthonormalForEveryOrder) {
  for (int n = 1; n <= 100; ++n) {
    EXPECT_LT(DeviationFromOrthonormal(HadamardRotation(n), n), 1e-12) << n;
  }
}

TEST(HadamardRotation, SpreadsOneDimEvenlyOverAllForMultiplesOf16UpTo256) {
  for (int n = 16; n <= 256; n += 16) {
    const std::vector<double> h = HadamardRotation(n);
    for (double value : h) EXPECT_NEAR(std::abs(value), 1 / std::sqrt(n), 1e-12) << n;
    EXPECT_LT(DeviationFromOrthonormal(h, n), 1e-12) << n;
  }
}

TEST(HadamardRotation, TurnsTheFirstDimIntoACommonOffset) {
  for (int n = 16; n <= 256; n += 16) {
    const std::vector<double> h = HadamardRotation(n);
    for (int r = 0; r < n; ++r) EXPECT_GT(h[r * n], 0) << n;
  }
}

}  // namespace
}  // namespace latentd
