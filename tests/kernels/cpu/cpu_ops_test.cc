#include "kernels/cpu/cpu_ops.h"

#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/random_values.h"
#include "tests/testing/random_weight.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

TEST(CpuOps, NamesItsVectors) {
  const auto ops = CreateCpuOps(1);
  ASSERT_TRUE(ops.ok());
  EXPECT_THAT(std::string((*ops)->name()), StartsWith("cpu ("));
}

TEST(CpuOps, RefusesThreadCountsOutOfRange) {
  for (int threads : {-1, 0, 1025}) {
    const auto ops = CreateCpuOps(threads);
    ASSERT_EQ(ops.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(ops.status().message(), HasSubstr(std::to_string(threads)));
    EXPECT_THAT(ops.status().message(), HasSubstr("1024"));
  }
}

// Through the interface, beside the reference: int8 activations cost less than a percent.
TEST(CpuOps, ProductsAreNearTheReference) {
  const auto cpu = CreateCpuOps(2);
  const auto reference = CreateReferenceOps();
  ASSERT_TRUE(cpu.ok());
  for (DType dtype : kAllDTypes) {
    constexpr int64_t kRows = 4, kCols = 512, kOut = 50;
    const RandomWeight stored(dtype, kOut, kCols, 1);
    const std::vector<float> in = GaussianValues(kRows * kCols, 2);
    std::vector<float> outs[2];
    Ops* const both[] = {cpu->get(), reference.get()};
    for (int i = 0; i < 2; ++i) {
      const auto weight = both[i]->PrepareWeight(stored.view());
      ASSERT_TRUE(weight.ok()) << weight.status();
      outs[i].resize(kRows * kOut);
      const Product product{.weight = weight->get(), .out = outs[i].data(), .out_stride = kOut};
      both[i]->Matmul({.in = in.data(), .rows = kRows, .k = kCols, .products = {&product, 1}});
    }
    double error = 0, size = 0;
    for (size_t i = 0; i < outs[0].size(); ++i) {
      error += (outs[0][i] - outs[1][i]) * (outs[0][i] - outs[1][i]);
      size += outs[1][i] * outs[1][i];
    }
    EXPECT_LT(error, 1e-4 * size) << Info(dtype).name;
  }
}

TEST(CpuOps, SamplesEveryRow) {
  const auto ops = CreateCpuOps(3);
  ASSERT_TRUE(ops.ok());
  constexpr int kRows = 20, kVocab = 300;
  std::vector<float> logits(kRows * kVocab, 0.0f);
  for (int r = 0; r < kRows; ++r) logits[r * kVocab + 7 * r] = 1.0f;
  const std::vector<SampleRow> rows(kRows, SampleRow{.temperature = 0.0f});
  std::vector<SampleResult> results(kRows);
  (*ops)->Sample(
      {.logits = logits.data(), .vocab = kVocab, .rows = rows, .results = absl::MakeSpan(results)});
  for (int r = 0; r < kRows; ++r) EXPECT_EQ(results[r].token_id, 7 * r);
}

}  // namespace
}  // namespace latentd
