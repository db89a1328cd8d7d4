#include <algorithm>
#include <memory>

#include "gtest/gtest.h"
#include "kernels/cpu/attention.h"
#include "kernels/reference/attention.h"
#include "tests/kernels/cpu/vector_targets.h"
#include "tests/testing/attention_case.h"

namespace latentd {
namespace {

// Appends every token with both backends; the caches must then be the same, byte for byte, unused
// memory included.
void ExpectSameBytes(const AttentionShape& shape, int threads) {
  const AttentionCase c(shape);
  const std::vector<int32_t> kv_lens = {0, 1, 63, 64, 65, 130};
  PagedCache expected(c.spec().cache, kv_lens), actual(c.spec().cache, kv_lens);
  const PagedStep step = expected.WholeStep();
  const AttentionInputs inputs(c, step.rows());
  const auto plan = PrepareCpuAttention(c.spec());
  ASSERT_TRUE(plan.ok()) << plan.status();
  AppendCacheParams params = {.plan = plan->get(),
                              .k = inputs.k.data(),
                              .k_stride = c.k_width(),
                              .v = inputs.v.data(),
                              .v_stride = c.v_width()};
  params.cache = expected.View(step);
  ReferenceAppendCache(params);
  params.cache = actual.View(step);
  ThreadPool pool(threads);
  CpuAppendCache(pool, params);
  EXPECT_TRUE(std::ranges::equal(expected.bytes(), actual.bytes()));
  EXPECT_TRUE(actual.GuardsIntact());
}

TEST(AppendCacheTest, WritesTheBytesOfTheDefinition) {
  ForEachVectorTarget([] {
    for (const Codec codec : kAllCodecs) {
      SCOPED_TRACE(Info(codec).name);
      ExpectSameBytes({.path = AttentionPath::kAbsorbed,
                       .k = {{.dims = 48, .codec = codec}},
                       .v = {{.dims = 32, .codec = codec}}},
                      1);
    }
  });
}

TEST(AppendCacheTest, WritesMixedSegmentsOnAnyNumberOfThreads) {
  for (const int threads : {1, 3}) {
    ExpectSameBytes(
        {.path = AttentionPath::kAbsorbed,
         .k_latent_heads = 1,
         .k = {{.dims = 16, .codec = Codec::kInt8},
               {.dims = 32, .codec = Codec::kInt3},
               {.dims = 16, .codec = Codec::kF16}},
         .v = {{.dims = 16, .codec = Codec::kF32}, {.dims = 16, .codec = Codec::kMinMax2}}},
        threads);
  }
}

TEST(AppendCacheTest, PadsFullHeadsWithZeros) {
  ExpectSameBytes({.path = AttentionPath::kFull,
                   .head_dim = 24,
                   .k = {{.dims = 32, .codec = Codec::kF16}},
                   .v = {{.dims = 32, .codec = Codec::kInt4}}},
                  1);
}

}  // namespace
}  // namespace latentd
