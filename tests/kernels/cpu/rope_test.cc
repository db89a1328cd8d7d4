#include "kernels/cpu/rope.h"

#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops.h"
#include "tests/testing/random_values.h"

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

TEST(CpuRope, IsTheReference) {
  const auto reference = CreateReferenceOps();
  ThreadPool pool(2);
  for (int pairs : {1, 5, 16, 32}) {
    for (int head_dim : {2 * pairs, 2 * pairs + 6}) {
      const RopeTable table = MakeTable(pairs, 100);
      std::vector<int32_t> positions;
      for (int t = 0; t < 20; ++t) positions.push_back(t * 37 % 100);
      std::vector<float> want = GaussianValues(20 * 3 * head_dim, 1), x = want;
      const std::vector<float> before = x;
      RopeParams p{.table = &table,
                   .positions = positions,
                   .heads = 3,
                   .head_dim = head_dim,
                   .x = want.data()};
      reference->Rope(p);
      p.x = x.data();
      CpuRope(pool, p);
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
