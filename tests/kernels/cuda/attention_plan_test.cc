#include <string>
#include <vector>

#include "kernels/cuda/cuda_ops.h"
#include "tests/kernels/ops/attention_run.h"
#include "tests/testing/tested_backend.h"

namespace latentd {
namespace {

using AttentionPlanTest = OpsTest;

std::string DecodeKernelOf(const AttentionShape& shape, bool batch_invariant = false) {
  const std::unique_ptr<Ops> ops = *CreateFastestOps(1);
  const AttentionCase c(shape);
  const auto plan = PrepareCudaAttention(*ops, c.spec(), batch_invariant);
  return plan.ok() ? std::string((*plan)->decode_kernel()) : std::string(plan.status().message());
}

// Four KV heads of 128 that share a latent, as latent-compress gives them to a large model.
AttentionShape Latents(const std::vector<Segment>& k, const std::vector<Segment>& v) {
  return {.path = AttentionPath::kReconstruct,
          .num_heads = 16,
          .num_kv_heads = 4,
          .head_dim = 128,
          .k_latent_heads = 1,
          .v_latent_heads = 1,
          .k = k,
          .v = v,
          .sinks = 4,
          .own_page = true};
}

// What is slow must not become so unnoticed.
TEST_F(AttentionPlanTest, TheKernelIsTheFastestThatServesTheCodes) {
  const std::vector<Segment> few_bits = {{.dims = 160, .codec = Codec::kInt4},
                                         {.dims = 352, .codec = Codec::kInt2}};
  const std::vector<Segment> balanced_v = {{.dims = 64, .codec = Codec::kInt8},
                                           {.dims = 256, .codec = Codec::kInt4},
                                           {.dims = 192, .codec = Codec::kInt2}};
  const std::vector<Segment> many_bits = {{.dims = 32, .codec = Codec::kInt8},
                                          {.dims = 320, .codec = Codec::kInt4},
                                          {.dims = 160, .codec = Codec::kInt2}};
  EXPECT_EQ(DecodeKernelOf(Latents(few_bits, few_bits)), "int8 factors");
  EXPECT_EQ(DecodeKernelOf(Latents(few_bits, balanced_v)), "int8 factors");
  EXPECT_EQ(DecodeKernelOf(Latents(many_bits, balanced_v)), "fp16 factors");
  EXPECT_EQ(DecodeKernelOf(Latents(One(256, Codec::kF16), One(256, Codec::kF16))), "fp16 factors");
  AttentionShape biased = Latents(One(256, Codec::kInt4), balanced_v);
  biased.biases = true;
  EXPECT_EQ(DecodeKernelOf(biased), "fp16 factors");
  AttentionShape absorbed = Latents(many_bits, balanced_v);
  absorbed.path = AttentionPath::kAbsorbed;
  EXPECT_EQ(DecodeKernelOf(absorbed), "direct");
  EXPECT_EQ(DecodeKernelOf({.k = One(32, Codec::kF16), .v = One(32, Codec::kF16)}), "direct");
  EXPECT_EQ(DecodeKernelOf(Latents(few_bits, few_bits), /*batch_invariant=*/true), "general");
}

}  // namespace
}  // namespace latentd
