#include "kernels/cpu/attention.h"

#include <string>

#include "kernels/cpu/amx_product.h"
#include "tests/kernels/cpu/vector_targets.h"
#include "tests/kernels/ops/attention_run.h"
#include "tests/testing/tested_backend.h"

namespace latentd {
namespace {

// Of rebuilt keys, which every machine multiplies as integers.
TEST(CpuAttentionTest, AmxGivesTheSameBits) {
  if (!RequestAmx()) GTEST_SKIP() << "AMX is not there";
  for (const Codec second : {Codec::kInt8, Codec::kInt2}) {
    const AttentionCase c(
        {.path = AttentionPath::kReconstruct,
         .head_dim = 80,
         .k_latent_heads = 1,
         .k = {{.dims = 96, .codec = Codec::kInt4}, {.dims = 16, .codec = second}},
         .v = One(32, Codec::kF16)});
    PagedCache cache(c.spec().cache, {100});
    const AttentionInputs inputs(c, cache.num_tokens());
    AttentionRun with(c, 1, PlanKinds()[0]), without(c, 1, PlanKinds()[1]);
    with.AppendReference(inputs, cache, cache.WholeStep());
    ForEachVectorTarget([&] {
      ExpectSameBits(with.Attend(inputs, cache, cache.LastStep(5)),
                     without.Attend(inputs, cache, cache.LastStep(5)));
    });
  }
}

TEST(CpuAttentionTest, RefusesWhatItCannotHold) {
  const AttentionCase c(
      {.path = AttentionPath::kAbsorbed, .k = One(4112, Codec::kF16), .v = One(16, Codec::kF16)});
  const auto plan = PrepareCpuAttention(c.spec());
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(plan.status().message().find("4112"), std::string::npos);
}

}  // namespace
}  // namespace latentd
