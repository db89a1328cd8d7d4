#include "engine/compressor/float_rows.h"

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "engine/model/model_config.h"
#include "gtest/gtest.h"
#include "tests/testing/random_values.h"

namespace latentd {
namespace {

// d/dx of sum_i r_i f(x)_i by central differences.
std::vector<double> Differences(std::vector<float> x, const std::vector<float>& r,
                                const std::function<std::vector<float>(std::vector<float>)>& f) {
  std::vector<double> slopes;
  constexpr float kStep = 1e-2f;
  for (float& value : x) {
    const float centre = value;
    double sums[2];
    for (int side = 0; side < 2; ++side) {
      value = centre + (side == 0 ? -kStep : kStep);
      const std::vector<float> out = f(x);
      sums[side] = 0;
      for (size_t i = 0; i < out.size(); ++i) sums[side] += double{r[i]} * out[i];
    }
    value = centre;
    slopes.push_back((sums[1] - sums[0]) / (2 * kStep));
  }
  return slopes;
}

TEST(FloatRows, ExpIsExactToAFewUnits) {
  std::vector<float> x;
  for (float value = -86; value < 88; value += 0.0137f) x.push_back(value);
  std::vector<float> powers = x;
  ExpInPlace(powers.data(), static_cast<int64_t>(powers.size()));
  for (size_t i = 0; i < x.size(); ++i) {
    EXPECT_NEAR(powers[i] / std::exp(double{x[i]}), 1, 3e-7) << x[i];
  }
  std::vector<float> edges = {0, -88, -1e30f, -std::numeric_limits<float>::infinity()};
  ExpInPlace(edges.data(), 4);
  EXPECT_EQ(edges, (std::vector<float>{1, 0, 0, 0}));
}

TEST(FloatRows, ReductionsTakeEveryValue) {
  for (const int n : {1, 15, 16, 17, 100}) {
    const std::vector<float> a = GaussianValues(n, n), b = GaussianValues(n, n + 1);
    double sum = 0, dot = 0;
    float largest = a[0];
    for (int i = 0; i < n; ++i) {
      sum += a[i];
      dot += double{a[i]} * b[i];
      largest = std::max(largest, a[i]);
    }
    EXPECT_NEAR(Sum(a.data(), n), sum, 1e-4) << n;
    EXPECT_NEAR(Dot(a.data(), b.data(), n), dot, 1e-4) << n;
    EXPECT_EQ(Largest(a.data(), n), largest) << n;
  }
}

TEST(FloatRows, NormsAreDerivedRight) {
  constexpr int kDims = 24, kRows = 2;
  const std::vector<float> weight = GaussianValues(kDims, 1), bias = GaussianValues(kDims, 2),
                           x = GaussianValues(kRows * kDims, 3),
                           r = GaussianValues(kRows * kDims, 4);
  for (const NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
    const RowNorm norm{.kind = kind,
                       .epsilon = 1e-3f,
                       .dims = kDims,
                       .weight = weight.data(),
                       .bias = kind == NormKind::kLayer ? bias.data() : nullptr};
    const std::vector<double> slopes = Differences(x, r, [&](std::vector<float> in) {
      NormRows(norm, in.data(), kRows, in.data());
      return in;
    });
    std::vector<float> dx(x.size(), 1.0f);
    NormRowsBackward(norm, x.data(), r.data(), kRows, /*accumulate=*/true, dx.data());
    std::vector<float> in_place = r;
    NormRowsBackward(norm, x.data(), in_place.data(), kRows, /*accumulate=*/false, in_place.data());
    for (size_t i = 0; i < x.size(); ++i) {
      EXPECT_NEAR(dx[i], slopes[i] + 1, 2e-3) << i;
      EXPECT_NEAR(in_place[i], slopes[i], 2e-3) << i;
    }
  }
}

TEST(FloatRows, ActivationsAreDerivedRight) {
  constexpr int kSize = 40;
  const std::vector<float> r = GaussianValues(kSize, 1);
  std::vector<float> gate = GaussianValues(kSize, 2);
  for (float& value : gate) value *= 3;
  const std::vector<float> up = GaussianValues(kSize, 3);
  for (const ActivationKind kind : {ActivationKind::kSiluGated, ActivationKind::kGeluTanh}) {
    const auto by_gate = Differences(gate, r, [&](std::vector<float> x) {
      Activate(kind, x.data(), up.data(), kSize, x.data());
      return x;
    });
    std::vector<float> dgate = gate, dup = up;
    ActivateBackward(kind, r.data(), kSize, dgate.data(), dup.data());
    for (int i = 0; i < kSize; ++i) EXPECT_NEAR(dgate[i], by_gate[i], 2e-3) << gate[i];
    if (kind != ActivationKind::kSiluGated) continue;
    const auto by_up = Differences(up, r, [&](std::vector<float> x) {
      Activate(kind, gate.data(), x.data(), kSize, x.data());
      return x;
    });
    for (int i = 0; i < kSize; ++i) EXPECT_NEAR(dup[i], by_up[i], 2e-3) << up[i];
  }
}

TEST(FloatRows, RotatingBackUndoesRotating) {
  const RopeTable table = BuildRopeTable({.inv_freq = {1.0, 0.3, 0.01}}, 5);
  const std::vector<float> x = GaussianValues(5 * 2 * 8, 1);
  std::vector<float> turned = x;
  RotateRows(table, 0, 5, 2, 8, /*inverse=*/false, turned.data());
  EXPECT_EQ(turned[0], x[0]);                  // position 0 stays
  EXPECT_NE(turned[2 * 8], x[2 * 8]);          // position 1 does not,
  EXPECT_EQ(turned[2 * 8 + 6], x[2 * 8 + 6]);  // but for dims past the pairs
  RotateRows(table, 0, 2, 2, 8, /*inverse=*/true, turned.data());
  RotateRows(table, 2, 3, 2, 8, /*inverse=*/true, turned.data());
  for (size_t i = 0; i < x.size(); ++i) EXPECT_NEAR(turned[i], x[i], 1e-6) << i;
}

}  // namespace
}  // namespace latentd
