#include <algorithm>
#include <cmath>
#include <vector>

#include "tests/testing/device_values.h"
#include "tests/testing/random_values.h"
#include "tests/testing/tested_backend.h"

namespace latentd {
namespace {

// Rows of in, normed as p says; no bias when it is empty.
std::vector<float> Normed(Ops& ops, NormParams p, const std::vector<float>& in,
                          const std::vector<float>& weight, const std::vector<float>& bias = {}) {
  const DeviceArray<float> device_in = ToDevice(ops, in), device_weight = ToDevice(ops, weight),
                           device_bias = ToDevice(ops, bias),
                           out = ToDevice(ops, std::vector<float>(in.size(), NAN));
  p.in = device_in.data();
  p.weight = device_weight.data();
  p.bias = device_bias.data();
  p.out = out.data();
  ops.BeginStep({});
  ops.Norm(p);
  return ToHost(ops, out);
}

using NormTest = OpsTest;

TEST_F(NormTest, IsTheReference) {
  const auto reference = CreateReferenceOps();
  const auto ops = NewOps(2);
  ForEachKindOfCode([&] {
    for (NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
      for (int dims : {1, 7, 16, 31, 32, 33, 64, 576, 1001, 4096, 9000}) {
        for (bool bias : {false, true}) {
          constexpr int64_t kRows = 3;
          std::vector<float> in = GaussianValues(kRows * dims, 1);
          for (float& x : in) x += 2.0f;  // a mean that matters
          const std::vector<float> weight = GaussianValues(dims, 2);
          const std::vector<float> biases = GaussianValues(bias ? dims : 0, 3);
          const NormParams p{.kind = kind, .epsilon = 1e-3f, .rows = kRows, .dims = dims};
          const std::vector<float> want = Normed(*reference, p, in, weight, biases);
          const std::vector<float> out = Normed(*ops, p, in, weight, biases);
          for (size_t i = 0; i < out.size(); ++i) {
            ASSERT_NEAR(out[i], want[i], 2e-5) << dims << " dims, value " << i;
          }
        }
      }
    }
  });
}

TEST_F(NormTest, RowsDoNotDependOnTheBatchAndMayBeNormedInPlace) {
  const auto ops = NewOps(3);
  ForEachKindOfCode([&] {
    constexpr int kDims = 45, kRows = 40;
    const std::vector<float> in = GaussianValues(kRows * kDims, 1),
                             weight = GaussianValues(kDims, 2);
    const DeviceArray<float> device_weight = ToDevice(*ops, weight);
    NormParams p{.kind = NormKind::kRms, .rows = kRows, .dims = kDims};
    const std::vector<float> whole = Normed(*ops, p, in, weight);
    for (int r = 0; r < kRows; ++r) {
      const DeviceArray<float> row =
          ToDevice(*ops, std::vector<float>(in.begin() + r * kDims, in.begin() + (r + 1) * kDims));
      p.rows = 1;
      p.in = p.out = row.data();
      p.weight = device_weight.data();
      ops->Norm(p);
      const std::vector<float> out = ToHost(*ops, row);
      ASSERT_TRUE(std::equal(out.begin(), out.end(), whole.begin() + r * kDims));
    }
  });
}

}  // namespace
}  // namespace latentd
