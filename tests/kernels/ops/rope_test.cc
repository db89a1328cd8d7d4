#include <cmath>
#include <vector>

#include "tests/testing/device_values.h"
#include "tests/testing/random_values.h"
#include "tests/testing/tested_backend.h"

namespace latentd {
namespace {

RopeTable MakeTable(int pairs, int max_positions) {
  RopeTable table{.pairs = pairs, .max_positions = max_positions};
  for (int n = 0; n < max_positions; ++n) {
    for (int j = 0; j < pairs; ++j) {
      const double angle = n * std::pow(10000.0, -static_cast<double>(j) / pairs);
      table.cos.push_back(static_cast<float>(std::cos(angle)));
      table.sin.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  return table;
}

std::vector<float> Rotated(Ops& ops, RopeParams p, const std::vector<float>& before) {
  const DeviceArray<float> x = ToDevice(ops, before);
  p.x = x.data();
  ops.BeginStep({});
  ops.Rope(p);
  return ToHost(ops, x);
}

using RopeTest = OpsTest;

TEST_F(RopeTest, IsTheReference) {
  const auto reference = CreateReferenceOps();
  for (int pairs : {1, 5, 16, 32}) {
    for (int head_dim : {2 * pairs, 2 * pairs + 6}) {
      const RopeTable table = MakeTable(pairs, 100);
      const auto ops = NewOps(2);  // which has seen no other table
      std::vector<int32_t> positions;
      for (int t = 0; t < 20; ++t) positions.push_back(t * 37 % 100);
      const std::vector<float> before = GaussianValues(20 * 3 * head_dim, 1);
      const RopeParams p{.table = &table, .positions = positions, .heads = 3, .head_dim = head_dim};
      const std::vector<float> want = Rotated(*reference, p, before);
      const std::vector<float> x = Rotated(*ops, p, before);
      for (size_t i = 0; i < x.size(); ++i) {
        ASSERT_NEAR(x[i], want[i], 1e-6) << i;
        const bool rotated = static_cast<int>(i % head_dim) < 2 * pairs;
        ASSERT_TRUE(rotated || x[i] == before[i]) << i;
      }
    }
  }
}

}  // namespace
}  // namespace latentd
