#include "kernels/cpu/activation.h"

#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops.h"
#include "tests/kernels/cpu/vector_targets.h"
#include "tests/testing/random_values.h"

namespace latentd {
namespace {

TEST(CpuActivation, IsTheReference) {
  const auto reference = CreateReferenceOps();
  ForEachVectorTarget([&] {
    for (ActivationKind kind : {ActivationKind::kSiluGated, ActivationKind::kGeluTanh}) {
      for (int64_t dims : {1, 15, 16, 100, 9001}) {
        std::vector<float> gate = GaussianValues(2 * dims, 1, 5.0f);
        gate[0] = -200.0f;
        gate[dims] = 200.0f;
        const std::vector<float> up = GaussianValues(2 * dims, 2);
        std::vector<float> want(gate.size()), out(gate.size());
        ActivationParams p{.kind = kind,
                           .rows = 2,
                           .dims = dims,
                           .gate = gate.data(),
                           .up = kind == ActivationKind::kSiluGated ? up.data() : nullptr,
                           .out = want.data()};
        reference->Activation(p);
        p.out = out.data();
        ThreadPool pool(2);
        CpuActivation(pool, p);
        for (size_t i = 0; i < out.size(); ++i) {
          ASSERT_NEAR(out[i], want[i], 2e-6 * std::abs(want[i]) + 1e-6) << "of " << gate[i];
        }
      }
    }
  });
}

TEST(CpuActivation, ValuesDoNotDependOnTheirPlaceAndMayStayInPlace) {
  ForEachVectorTarget([] {
    const std::vector<float> gate = GaussianValues(37, 1), up = GaussianValues(37, 2);
    std::vector<float> whole(37);
    ThreadPool pool(1);
    CpuActivation(
        pool, {.rows = 1, .dims = 37, .gate = gate.data(), .up = up.data(), .out = whole.data()});
    for (int i = 0; i < 37; ++i) {
      float value = gate[i];
      CpuActivation(pool, {.rows = 1, .dims = 1, .gate = &value, .up = &up[i], .out = &value});
      EXPECT_EQ(value, whole[i]) << i;
    }
  });
}

TEST(CpuActivation, NaNIsSeen) {
  ForEachVectorTarget([] {
    const std::vector<float> gate(16, std::numeric_limits<float>::quiet_NaN()), up(16, 1.0f);
    std::vector<float> out(16);
    ThreadPool pool(1);
    CpuActivation(pool,
                  {.rows = 1, .dims = 16, .gate = gate.data(), .up = up.data(), .out = out.data()});
    for (float x : out) EXPECT_TRUE(std::isnan(x));
  });
}

}  // namespace
}  // namespace latentd
