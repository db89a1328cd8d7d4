#include "kernels/cpu/norm.h"

#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/ops.h"
#include "tests/kernels/cpu/vector_targets.h"
#include "tests/testing/random_values.h"

namespace latentd {
namespace {

TEST(CpuNorm, IsTheReference) {
  const auto reference = CreateReferenceOps();
  ForEachVectorTarget([&] {
    for (NormKind kind : {NormKind::kRms, NormKind::kLayer}) {
      for (int dims : {1, 7, 16, 31, 32, 33, 64, 576, 1001}) {
        for (bool bias : {false, true}) {
          constexpr int64_t kRows = 3;
          std::vector<float> in = GaussianValues(kRows * dims, 1);
          for (float& x : in) x += 2.0f;  // a mean that matters
          const std::vector<float> weight = GaussianValues(dims, 2),
                                   biases = GaussianValues(dims, 3);
          std::vector<float> want(in.size()), out(in.size());
          NormParams p{.kind = kind,
                       .epsilon = 1e-3f,
                       .rows = kRows,
                       .dims = dims,
                       .in = in.data(),
                       .weight = weight.data(),
                       .bias = bias ? biases.data() : nullptr,
                       .out = want.data()};
          reference->Norm(p);
          p.out = out.data();
          ThreadPool pool(2);
          CpuNorm(pool, p);
          for (size_t i = 0; i < out.size(); ++i) {
            ASSERT_NEAR(out[i], want[i], 2e-5) << dims << " dims, value " << i;
          }
        }
      }
    }
  });
}

TEST(CpuNorm, RowsDoNotDependOnTheBatchAndMayBeNormedInPlace) {
  ForEachVectorTarget([] {
    constexpr int kDims = 45, kRows = 40;
    const std::vector<float> in = GaussianValues(kRows * kDims, 1),
                             weight = GaussianValues(kDims, 2);
    std::vector<float> whole(in.size());
    NormParams p{.kind = NormKind::kRms,
                 .rows = kRows,
                 .dims = kDims,
                 .in = in.data(),
                 .weight = weight.data(),
                 .out = whole.data()};
    ThreadPool pool(3);
    CpuNorm(pool, p);
    for (int r = 0; r < kRows; ++r) {
      std::vector<float> row(in.begin() + r * kDims, in.begin() + (r + 1) * kDims);
      p.rows = 1;
      p.in = p.out = row.data();
      CpuNorm(pool, p);
      ASSERT_TRUE(std::equal(row.begin(), row.end(), whole.begin() + r * kDims));
    }
  });
}

}  // namespace
}  // namespace latentd
