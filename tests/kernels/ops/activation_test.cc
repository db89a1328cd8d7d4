#include <cmath>
#include <limits>
#include <vector>

#include "tests/testing/device_values.h"
#include "tests/testing/random_values.h"
#include "tests/testing/tested_backend.h"

namespace latentd {
namespace {

// Of rows of gate and, for gated kinds, up; in place of gate when asked.
std::vector<float> Activated(Ops& ops, ActivationKind kind, int64_t rows,
                             const std::vector<float>& gate, const std::vector<float>& up,
                             bool in_place = false) {
  const DeviceArray<float> device_gate = ToDevice(ops, gate), device_up = ToDevice(ops, up),
                           other = ToDevice(ops, std::vector<float>(gate.size(), NAN));
  const DeviceArray<float>& out = in_place ? device_gate : other;
  ops.BeginStep({});
  ops.Activation({.kind = kind,
                  .rows = rows,
                  .dims = std::ssize(gate) / rows,
                  .gate = device_gate.data(),
                  .up = kind == ActivationKind::kSiluGated ? device_up.data() : nullptr,
                  .out = out.data()});
  return ToHost(ops, out);
}

using ActivationTest = OpsTest;

TEST_F(ActivationTest, IsTheReference) {
  const auto reference = CreateReferenceOps();
  const auto ops = NewOps(2);
  ForEachKindOfCode([&] {
    for (ActivationKind kind : {ActivationKind::kSiluGated, ActivationKind::kGeluTanh}) {
      for (int64_t dims : {1, 15, 16, 100, 9001}) {
        std::vector<float> gate = GaussianValues(2 * dims, 1, 5.0f);
        gate[0] = -200.0f;
        gate[dims] = 200.0f;
        const std::vector<float> up = GaussianValues(2 * dims, 2);
        const std::vector<float> want = Activated(*reference, kind, 2, gate, up);
        const std::vector<float> out = Activated(*ops, kind, 2, gate, up);
        for (size_t i = 0; i < out.size(); ++i) {
          ASSERT_NEAR(out[i], want[i], 2e-6 * std::abs(want[i]) + 1e-6) << "of " << gate[i];
        }
      }
    }
  });
}

TEST_F(ActivationTest, ValuesDoNotDependOnTheirPlaceAndMayStayInPlace) {
  const auto ops = NewOps();
  ForEachKindOfCode([&] {
    const std::vector<float> gate = GaussianValues(37, 1), up = GaussianValues(37, 2);
    const std::vector<float> whole = Activated(*ops, ActivationKind::kSiluGated, 1, gate, up);
    for (int i = 0; i < 37; ++i) {
      EXPECT_EQ(Activated(*ops, ActivationKind::kSiluGated, 1, {gate[i]}, {up[i]},
                          /*in_place=*/true)[0],
                whole[i])
          << i;
    }
  });
}

TEST_F(ActivationTest, NaNIsSeen) {
  const auto ops = NewOps();
  ForEachKindOfCode([&] {
    const std::vector<float> gate(16, std::numeric_limits<float>::quiet_NaN()), up(16, 1.0f);
    for (float x : Activated(*ops, ActivationKind::kSiluGated, 1, gate, up)) {
      EXPECT_TRUE(std::isnan(x));
    }
  });
}

}  // namespace
}  // namespace latentd
