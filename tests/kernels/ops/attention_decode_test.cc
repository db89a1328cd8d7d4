#include <cstdint>
#include <numeric>
#include <vector>

#include "tests/kernels/ops/attention_run.h"
#include "tests/testing/tested_backend.h"

namespace latentd {
namespace {

// ---- Steps with one row a sequence, which may have kernels of their own ----

using AttentionDecodeTest = OpsTest;

// Latents that groups of heads share: what decode steps are made of. `keeps`: with something of all
// that a layer can keep beside its blocks.
void ExpectAgreesOnGroups(const std::vector<Segment>& k, const std::vector<Segment>& v, bool biases,
                          bool keeps) {
  for (const int head_dim : {64, 128}) {
    for (const int q_per_kv : {1, 3, 4, 8}) {
      SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << " q_per_kv " << q_per_kv
                                      << " segments of K " << k.size());
      ExpectAgreesWithReference({.path = AttentionPath::kReconstruct,
                                 .num_heads = 6 * q_per_kv,
                                 .num_kv_heads = 6,
                                 .head_dim = head_dim,
                                 .k = k,
                                 .v = v,
                                 .biases = biases && q_per_kv != 3,
                                 .sinks = keeps ? 4 : 0,
                                 .own_page = keeps,
                                 .k_norm = keeps},
                                {0, 1, 63, 64, 65, 260}, 1, PlanKinds());
    }
  }
}

// Of four heads that share one latent.
void ExpectAgreesOnOneGroup(int k_dims, Codec k, int v_dims, Codec v, bool biases, int window,
                            bool own_page = false) {
  SCOPED_TRACE(testing::Message() << "K " << k_dims << " " << Info(k).name << " V " << v_dims << " "
                                  << Info(v).name << " biases " << biases << " window " << window);
  ExpectAgreesWithReference({.path = AttentionPath::kReconstruct,
                             .num_heads = 4,
                             .num_kv_heads = 4,
                             .head_dim = 128,
                             .k_latent_heads = 1,
                             .v_latent_heads = 1,
                             .k = One(k_dims, k),
                             .v = One(v_dims, v),
                             .rope_pairs = window > 0 ? 48 : 0,
                             .biases = biases,
                             .own_page = own_page,
                             .window = window},
                            {1500, 1, 64}, 1, PlanKinds());
}

// Of K; those of V may have 8.
TEST_F(AttentionDecodeTest, AgreesOnLatentsOfFewBits) {
  const std::vector<Segment> mixed_k = {{.dims = 64, .codec = Codec::kInt4},
                                        {.dims = 32, .codec = Codec::kInt3},
                                        {.dims = 80, .codec = Codec::kInt2}};
  const std::vector<Segment> mixed_v = {{.dims = 80, .codec = Codec::kInt4},
                                        {.dims = 16, .codec = Codec::kInt3},
                                        {.dims = 96, .codec = Codec::kInt2}};
  ExpectAgreesOnGroups(One(160, Codec::kInt4), mixed_v, /*biases=*/false, /*keeps=*/true);
  ExpectAgreesOnGroups(mixed_k, mixed_v, /*biases=*/false, /*keeps=*/true);
  const std::vector<Segment> wide_k = {{.dims = 96, .codec = Codec::kInt4},
                                       {.dims = 224, .codec = Codec::kInt2}};
  const std::vector<Segment> many_v = {{.dims = 32, .codec = Codec::kInt8},
                                       {.dims = 80, .codec = Codec::kInt4},
                                       {.dims = 64, .codec = Codec::kInt2}};
  const std::vector<Segment> wide_v = {{.dims = 272, .codec = Codec::kInt4},
                                       {.dims = 240, .codec = Codec::kInt2}};
  ExpectAgreesOnGroups(wide_k, mixed_v, /*biases=*/false, /*keeps=*/false);
  ExpectAgreesOnGroups(wide_k, wide_v, /*biases=*/false, /*keeps=*/true);
  ExpectAgreesOnGroups(mixed_k, many_v, /*biases=*/false, /*keeps=*/true);
  for (const Codec codec : {Codec::kInt4, Codec::kInt3, Codec::kInt2}) {
    for (const int window : {0, 100}) {
      ExpectAgreesOnOneGroup(256, codec, 384, codec, /*biases=*/false, window);
    }
    // More dims of K than registers hold at once, and not all that the products have room for.
    ExpectAgreesOnOneGroup(512, codec, 448, codec, /*biases=*/false, 0);
    ExpectAgreesOnOneGroup(304, codec, 128, codec, /*biases=*/false, 0);
    // A window that begins in the own page.
    ExpectAgreesOnOneGroup(128, codec, 128, codec, /*biases=*/false, 20, /*own_page=*/true);
  }
}

// Whose codes, or whose k_bias, int8 factors do not serve.
TEST_F(AttentionDecodeTest, AgreesOnLatentsOfManyBits) {
  const std::vector<Segment> odd_k = {{.dims = 48, .codec = Codec::kInt4},
                                      {.dims = 32, .codec = Codec::kInt2}};
  const std::vector<Segment> mixed_k = {{.dims = 16, .codec = Codec::kF16},
                                        {.dims = 32, .codec = Codec::kInt8},
                                        {.dims = 48, .codec = Codec::kInt4},
                                        {.dims = 16, .codec = Codec::kInt3},
                                        {.dims = 32, .codec = Codec::kInt2}};
  const std::vector<Segment> mixed_v = {{.dims = 32, .codec = Codec::kF16},
                                        {.dims = 80, .codec = Codec::kInt8},
                                        {.dims = 64, .codec = Codec::kInt4},
                                        {.dims = 16, .codec = Codec::kInt2}};
  ExpectAgreesOnGroups(One(160, Codec::kInt8), One(176, Codec::kInt8), /*biases=*/false,
                       /*keeps=*/false);
  ExpectAgreesOnGroups(One(160, Codec::kInt8), One(176, Codec::kInt8), /*biases=*/false,
                       /*keeps=*/true);
  ExpectAgreesOnGroups(One(96, Codec::kF16), One(80, Codec::kF16), /*biases=*/true,
                       /*keeps=*/true);
  ExpectAgreesOnGroups(mixed_k, mixed_v, /*biases=*/true, /*keeps=*/true);
  ExpectAgreesOnGroups(odd_k, One(80, Codec::kInt4), /*biases=*/false, /*keeps=*/false);
  // More dims of K than registers hold at once, and V of more blocks than few bits have.
  const std::vector<Segment> wide_k = {{.dims = 32, .codec = Codec::kInt8},
                                       {.dims = 176, .codec = Codec::kInt4},
                                       {.dims = 96, .codec = Codec::kInt2}};
  const std::vector<Segment> wide_v = {{.dims = 80, .codec = Codec::kInt8},
                                       {.dims = 208, .codec = Codec::kInt4},
                                       {.dims = 224, .codec = Codec::kInt2}};
  ExpectAgreesOnGroups(wide_k, wide_v, /*biases=*/true, /*keeps=*/true);
  for (const int window : {0, 100}) {
    ExpectAgreesOnOneGroup(256, Codec::kInt8, 384, Codec::kInt4, /*biases=*/false, window);
    ExpectAgreesOnOneGroup(256, Codec::kInt4, 384, Codec::kInt8, /*biases=*/false, window);
    ExpectAgreesOnOneGroup(256, Codec::kInt4, 256, Codec::kInt4, /*biases=*/true, window);
    ExpectAgreesOnOneGroup(128, Codec::kF16, 144, Codec::kF16, /*biases=*/true, window);
    for (const Codec min_max : {Codec::kMinMax4, Codec::kMinMax3, Codec::kMinMax2}) {
      ExpectAgreesOnOneGroup(112, min_max, 128, Codec::kInt3, /*biases=*/false, window);
    }
  }
}

// Few pages: a block has one, which its warpgroups may share. Units of 1 to 6 heads, some with an
// odd number of passes, own pages and key norms.
TEST_F(AttentionDecodeTest, AgreesOnSinglePages) {
  for (const int head_dim : {64, 128}) {
    for (const int latent_heads : {2, 6}) {
      for (const Codec codec : {Codec::kInt4, Codec::kF16}) {
        SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << " latent heads "
                                        << latent_heads << " " << Info(codec).name);
        ExpectAgreesWithReference({.path = AttentionPath::kReconstruct,
                                   .num_heads = 12,
                                   .num_kv_heads = 6,
                                   .head_dim = head_dim,
                                   .k_latent_heads = latent_heads,
                                   .v_latent_heads = latent_heads,
                                   .k = One(96, codec),
                                   .v = One(80, codec),
                                   .biases = codec == Codec::kF16,
                                   .own_page = latent_heads == 6,
                                   .k_norm = codec == Codec::kInt4},
                                  {40}, 1, PlanKinds());
      }
    }
  }
}

// Many sequences: blocks of a GPU that walk over long runs of pages, of several sequences.
TEST_F(AttentionDecodeTest, AgreesOnManySequences) {
  std::vector<int32_t> kv_lens;
  for (int i = 0; i < 150; ++i) kv_lens.push_back(1 + i * 37 % 300);
  for (const bool full : {false, true}) {
    SCOPED_TRACE(testing::Message() << "full " << full);
    ExpectAgreesWithReference({.path = full ? AttentionPath::kFull : AttentionPath::kReconstruct,
                               .num_heads = 4,
                               .num_kv_heads = 4,
                               .head_dim = 64,
                               .k_latent_heads = full ? 4 : 2,
                               .v_latent_heads = full ? 4 : 2,
                               .k = full ? One(64, Codec::kF16) : One(80, Codec::kInt4),
                               .v = full ? One(64, Codec::kF16) : One(96, Codec::kInt4),
                               .own_page = !full},
                              kv_lens, 1, PlanKinds());
  }
}

TEST_F(AttentionDecodeTest, AgreesOnEveryPathAndCodec) {
  for (const AttentionPath path : {AttentionPath::kFull, AttentionPath::kAbsorbed}) {
    const bool full = path == AttentionPath::kFull;
    for (const Codec codec : kAllCodecs) {
      for (const int head_dim : {64, 80, 128}) {
        for (const int window : {0, 100}) {
          SCOPED_TRACE(testing::Message() << Name(path) << " " << Info(codec).name << " head_dim "
                                          << head_dim << " window " << window);
          ExpectAgreesWithReference({.path = path,
                                     .num_heads = 12,
                                     .num_kv_heads = 4,
                                     .head_dim = head_dim,
                                     .k_latent_heads = full ? 4 : 2,
                                     .v_latent_heads = full ? 4 : 2,
                                     .k = One(full ? head_dim : 112, codec),
                                     .v = One(full ? head_dim : 160, codec),
                                     .sinks = full ? 0 : 4,
                                     .own_page = !full,
                                     .window = window,
                                     .alibi = head_dim == 80},
                                    {0, 1, 64, 65, 200}, 1, PlanKinds());
        }
      }
    }
  }
}

// Of no, one, two and many pages, the last full or begun. The output of a long sequence is small,
// so each row is measured by itself.
TEST_F(AttentionDecodeTest, AgreesOnEveryLengthOfEveryCodec) {
  const std::vector<int32_t> kv_lens = {0, 1, 63, 64, 65, 4097};
  for (const AttentionPath path :
       {AttentionPath::kFull, AttentionPath::kReconstruct, AttentionPath::kAbsorbed}) {
    AttentionShape shape = {.path = path, .head_dim = 64, .k_latent_heads = 1, .v_latent_heads = 1};
    const int dims = path == AttentionPath::kFull ? 64 : 32;
    shape.k = shape.v = One(dims, Codec::kF16);
    const AttentionInputs inputs(AttentionCase(shape),
                                 std::accumulate(kv_lens.begin(), kv_lens.end(), int64_t{0}));
    for (const Codec codec : kAllCodecs) {
      SCOPED_TRACE(testing::Message() << Name(path) << " " << Info(codec).name);
      shape.k = shape.v = One(dims, codec);
      const AttentionCase c(shape, /*max_positions=*/4097);
      PagedCache cache(c.spec().cache, kv_lens);
      const PagedStep step = cache.LastStep(1);
      std::vector<float> expected;
      for (const PlanKind& kind : PlanKinds()) {
        SCOPED_TRACE(kind.name);
        AttentionRun run(c, 1, kind);
        if (run.refused()) continue;
        if (expected.empty()) {
          run.AppendReference(inputs, cache, cache.WholeStep());
          expected = run.AttendReference(inputs, cache, step);
        }
        const std::vector<float> actual = run.Attend(inputs, cache, step);
        for (int64_t row = 0; row < step.rows(); ++row) {
          const auto of_row = [&](const std::vector<float>& all) {
            const auto begin = all.begin() + row * c.q_width();
            return std::vector<float>(begin, begin + c.q_width());
          };
          EXPECT_LT(RelativeError(of_row(expected), of_row(actual)), AttentionTolerance(shape))
              << "at position " << step.positions[row];
        }
        EXPECT_TRUE(cache.GuardsIntact());
      }
    }
  }
}

// Queries that share a latent head: 9 to 16 and 17 to 32 of them, and so many that they are shared
// out; with few and many blocks of values.
TEST_F(AttentionDecodeTest, AgreesOnManyQueriesOfALatentHead) {
  const std::vector<Segment> k = {{.dims = 32, .codec = Codec::kInt8},
                                  {.dims = 48, .codec = Codec::kInt4},
                                  {.dims = 16, .codec = Codec::kInt3},
                                  {.dims = 32, .codec = Codec::kInt2}};
  const std::vector<Segment> narrow_v = {{.dims = 32, .codec = Codec::kInt4},
                                         {.dims = 48, .codec = Codec::kInt2}};
  const std::vector<Segment> middle_v = {{.dims = 32, .codec = Codec::kInt8},
                                         {.dims = 80, .codec = Codec::kInt4},
                                         {.dims = 48, .codec = Codec::kInt3}};
  const std::vector<Segment> wide_v = {{.dims = 32, .codec = Codec::kInt8},
                                       {.dims = 144, .codec = Codec::kInt4},
                                       {.dims = 16, .codec = Codec::kInt3},
                                       {.dims = 96, .codec = Codec::kInt2}};
  const auto expect = [](const AttentionShape& shape) {
    SCOPED_TRACE(testing::Message()
                 << Name(shape.path) << " heads " << shape.num_heads << " latent heads "
                 << shape.k_latent_heads << " V segments " << shape.v.size());
    ExpectAgreesWithReference(shape, {0, 1, 64, 150}, 1, PlanKinds());
  };
  for (const int q_per_kv : {5, 8, 9, 16}) {
    for (const std::vector<Segment>& v : {narrow_v, middle_v, wide_v}) {
      expect({.path = AttentionPath::kAbsorbed,
              .num_heads = 4 * q_per_kv,
              .num_kv_heads = 4,
              .head_dim = 32,
              .k = k,
              .v = v,
              .sinks = 4,
              .own_page = true,
              .alibi = q_per_kv < 9});
    }
  }
  expect({.path = AttentionPath::kAbsorbed,
          .num_heads = 40,
          .num_kv_heads = 8,
          .head_dim = 32,
          .k_latent_heads = 1,
          .v_latent_heads = 1,
          .k = k,
          .v = middle_v});
  for (const int q_per_kv : {9, 16}) {
    AttentionShape shape = {.num_heads = 2 * q_per_kv, .head_dim = 128, .k = k, .v = k};
    expect(shape);
    shape.k = shape.v = One(128, Codec::kF16);
    expect(shape);
  }
}

}  // namespace
}  // namespace latentd
