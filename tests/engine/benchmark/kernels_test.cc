#include "engine/benchmark/kernels.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

constexpr AttentionBenchOptions kSmall = {.heads = 4,
                                          .kv_heads = 2,
                                          .head_dim = 32,
                                          .group = 2,
                                          .context = 100,
                                          .batch = 2,
                                          .repeats = 1};

// Every kind of cache, with the bytes of its blocks: 2 sequences in 2 blocks each.
TEST(KernelsBench, TimesEveryKindOfCache) {
  const std::unique_ptr<Ops> ops = *CreateCpuOps(2);
  double progress = 0;
  const auto rows = BenchmarkAttention(*ops, kSmall, [&](double share) {
    EXPECT_GT(share, progress);
    progress = share;
  });
  ASSERT_TRUE(rows.ok()) << rows.status();
  EXPECT_EQ(progress, 1);
  ASSERT_EQ(rows->size(), 7u);
  EXPECT_EQ((*rows)[0].cache, "full, f16");
  EXPECT_EQ((*rows)[0].bytes, 4 * 2 * (2 * 32 * 2 * 64));
  EXPECT_EQ((*rows)[0].ratio_to_full, 1);
  EXPECT_EQ((*rows)[3].cache, "latents 50/50, int4");
  EXPECT_EQ((*rows)[3].bytes, 4 * 2 * (32 * 64 / 2 + 2 * 64));
  for (const AttentionBenchRow& row : *rows) {
    EXPECT_GT(row.us, 0) << row.cache;
    EXPECT_NEAR(row.gb_per_s, static_cast<double>(row.bytes) / row.us * 1e-3, 1e-9) << row.cache;
    EXPECT_NEAR(row.ratio_to_full, (*rows)[0].us / row.us, 1e-9) << row.cache;
  }
}

TEST(KernelsBench, HeadsThatDoNotDivideAreRefused) {
  const std::unique_ptr<Ops> ops = *CreateCpuOps(1);
  AttentionBenchOptions options = kSmall;
  options.group = 3;
  const auto ignore = [](double) {};
  EXPECT_THAT(std::string(BenchmarkAttention(*ops, options, ignore).status().message()),
              HasSubstr("--kv-heads is 2: --group 3 must divide it"));
}

}  // namespace
}  // namespace latentd
