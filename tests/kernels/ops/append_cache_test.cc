#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <vector>

#include "kernels/reference/attention.h"
#include "tests/kernels/ops/attention_run.h"
#include "tests/testing/tested_backend.h"

namespace latentd {
namespace {

// The same bytes, but that key norms may be one unit in the last place apart. Pages of `page_bytes`
// that follow each other, with norms from `first_norm` on.
void ExpectSameBytes(absl::Span<const uint8_t> want, absl::Span<const uint8_t> got,
                     int64_t page_bytes, int64_t first_norm) {
  ASSERT_EQ(want.size(), got.size());
  for (int64_t i = 0; i < std::ssize(want); i += 2) {
    uint16_t a, b;
    std::memcpy(&a, &want[i], 2);
    std::memcpy(&b, &got[i], 2);
    const int allowed = i % page_bytes >= first_norm ? 1 : 0;
    ASSERT_LE(std::abs(a - b), allowed)
        << "byte " << i % page_bytes << " of page " << i / page_bytes << ": " << a << " and " << b;
  }
}

// Blocks, seats and the step's pages.
void ExpectSameCache(const CacheLayer& layer, const PagedCache& want, const PagedCache& got,
                     const PagedStep& want_step, const PagedStep& got_step) {
  ExpectSameBytes(want.block_bytes(), got.block_bytes(), layer.block_bytes(),
                  layer.key_norm_offset(0));
  EXPECT_TRUE(got.GuardsIntact());
  if (layer.sequence_bytes() == 0) return;
  const int64_t first_norm = layer.OwnPageLayer().key_norm_offset(0);
  const size_t blocks = want.block_bytes().size();
  ExpectSameBytes(want.bytes().subspan(blocks), got.bytes().subspan(blocks), layer.sequence_bytes(),
                  layer.sink_bytes() + first_norm);
  if (!layer.own_page) return;
  ExpectSameBytes(want_step.step_pages->bytes(), got_step.step_pages->bytes(),
                  layer.own_page_bytes(), first_norm);
  EXPECT_TRUE(got_step.step_pages->GuardsIntact());
}

const std::vector<int32_t> kRagged = {0, 1, 63, 64, 65, 200};

// In two steps, of which the second begins inside pages and goes over several.
void ExpectTheDefinition(const AttentionShape& shape, int threads) {
  const AttentionCase c(shape);
  const CacheLayer& layer = c.spec().cache;
  PagedCache want(layer, kRagged), got(layer, kRagged);
  const AttentionInputs in(c, want.num_tokens());
  const ReferenceAttentionPlan reference(c.spec());
  AttentionRun run(c, threads);
  if (run.refused()) return;
  const std::vector<int32_t> none(kRagged.size(), 0), some = {0, 1, 2, 0, 63, 30};
  for (const auto& [from, to] : {std::pair(none, some), std::pair(some, kRagged)}) {
    const PagedStep want_step = want.Step(from, to), got_step = got.Step(from, to);
    ReferenceAppendCache(AppendRows(c, in, want_step).Params(reference, want.View(want_step)));
    run.Append(in, got, got_step);
    ExpectSameCache(layer, want, got, want_step, got_step);
  }
}

const std::vector<Segment> kMixedKeys = {{.dims = 16, .codec = Codec::kInt8},
                                         {.dims = 32, .codec = Codec::kInt3},
                                         {.dims = 16, .codec = Codec::kInt2}};
const std::vector<Segment> kMixedValues = {{.dims = 16, .codec = Codec::kF32},
                                           {.dims = 16, .codec = Codec::kMinMax2}};

using AppendCacheTest = OpsTest;

TEST_F(AppendCacheTest, WritesTheBytesOfTheDefinition) {
  ForEachKindOfCode([] {
    for (const Codec codec : kAllCodecs) {
      SCOPED_TRACE(Info(codec).name);
      ExpectTheDefinition({.path = AttentionPath::kAbsorbed,
                           .k = {{.dims = 48, .codec = codec}},
                           .v = {{.dims = 32, .codec = codec}}},
                          1);
    }
  });
}

TEST_F(AppendCacheTest, WritesMixedSegmentsSinksAndOwnPagesOnAnyNumberOfThreads) {
  for (const int threads : ThreadCounts()) {
    for (const int sinks : {0, 1, 4}) {
      for (const bool own_page : {false, true}) {
        ExpectTheDefinition({.path = AttentionPath::kAbsorbed,
                             .head_dim = 12,
                             .k_latent_heads = 1,
                             .k = kMixedKeys,
                             .v = kMixedValues,
                             .sinks = sinks,
                             .own_page = own_page},
                            threads);
      }
    }
  }
}

TEST_F(AppendCacheTest, WritesKeyNorms) {
  ForEachKindOfCode([] {
    for (const int k_latent_heads : {1, 2, 4}) {
      for (const bool own_page : {false, true}) {
        ExpectTheDefinition({.path = AttentionPath::kReconstruct,
                             .num_kv_heads = 4,
                             .head_dim = 24,
                             .k_latent_heads = k_latent_heads,
                             .k = kMixedKeys,
                             .v = kMixedValues,
                             .biases = k_latent_heads == 2,
                             .sinks = 4,
                             .own_page = own_page,
                             .k_norm = true},
                            2);
      }
    }
  });
}

TEST_F(AppendCacheTest, WritesLongSegments) {
  ForEachKindOfCode([] {
    for (const Codec codec : {Codec::kInt4, Codec::kMinMax3, Codec::kF16}) {
      SCOPED_TRACE(Info(codec).name);
      ExpectTheDefinition({.path = AttentionPath::kAbsorbed,
                           .k = {{.dims = 256, .codec = codec}},
                           .v = {{.dims = 304, .codec = codec}}},
                          1);
    }
  });
}

TEST_F(AppendCacheTest, PadsFullHeadsWithZeros) {
  ExpectTheDefinition({.path = AttentionPath::kFull,
                       .head_dim = 24,
                       .k = {{.dims = 32, .codec = Codec::kF16}},
                       .v = {{.dims = 32, .codec = Codec::kInt4}}},
                      1);
}

using AppendCacheLawTest = OpsTest;

// ---- The law: a token's bytes, its key norms too, depend on the token alone ----

TEST_F(AppendCacheLawTest, ChunksAndThreadsDoNotChangeBits) {
  const AttentionCase c({.path = AttentionPath::kReconstruct,
                         .head_dim = 24,
                         .k_latent_heads = 1,
                         .k = kMixedKeys,
                         .v = kMixedValues,
                         .sinks = 4,
                         .own_page = true,
                         .k_norm = true});
  PagedCache whole(c.spec().cache, kRagged);
  const AttentionInputs in(c, whole.num_tokens());
  AttentionRun(c, 1).Append(in, whole, whole.WholeStep());
  for (const int threads : ThreadCounts()) {
    AttentionRun run(c, threads);
    for (const int32_t chunk : {1, 3, 67, 200}) {
      SCOPED_TRACE(testing::Message() << threads << " threads, chunks of " << chunk);
      PagedCache chunked(c.spec().cache, kRagged);
      std::vector<int32_t> from(kRagged.size(), 0);
      while (from != kRagged) {
        std::vector<int32_t> to = from;
        for (size_t i = 0; i < to.size(); ++i) to[i] = std::min(from[i] + chunk, kRagged[i]);
        run.Append(in, chunked, chunked.Step(from, to));
        from = to;
      }
      EXPECT_EQ(whole.block_bytes(), chunked.block_bytes());
      if (chunk == 200) {
        EXPECT_EQ(whole.bytes(), chunked.bytes());
      }
    }
  }
}

}  // namespace
}  // namespace latentd
