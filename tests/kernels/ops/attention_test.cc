#include <algorithm>
#include <cmath>
#include <memory>
#include <string>
#include <vector>

#include "tests/kernels/ops/attention_run.h"
#include "tests/testing/tested_backend.h"

namespace latentd {
namespace {

const std::vector<int32_t> kRagged = {0, 1, 63, 64, 65, 130};

using AttentionTest = OpsTest;

TEST_F(AttentionTest, AgreesOnEveryPathAndCodec) {
  for (const AttentionPath path :
       {AttentionPath::kFull, AttentionPath::kReconstruct, AttentionPath::kAbsorbed}) {
    for (const Codec codec : kAllCodecs) {
      SCOPED_TRACE(testing::Message() << Name(path) << " " << Info(codec).name);
      ExpectAgreesWithReference({.path = path, .k = One(32, codec), .v = One(32, codec)}, kRagged,
                                70);
    }
  }
}

TEST_F(AttentionTest, AgreesWithEveryKindOfCode) {
  ForEachKindOfCode([] {
    for (const AttentionPath path :
         {AttentionPath::kFull, AttentionPath::kReconstruct, AttentionPath::kAbsorbed}) {
      for (const Codec codec : kAllCodecs) {
        SCOPED_TRACE(testing::Message() << Name(path) << " " << Info(codec).name);
        ExpectAgreesWithReference(
            {.path = path, .num_heads = 14, .k = One(32, codec), .v = One(32, codec)}, {67}, 3);
      }
    }
  });
}

TEST_F(AttentionTest, AgreesOnMixedSegmentsAndGroups) {
  const std::vector<Segment> k = {{.dims = 16, .codec = Codec::kInt8},
                                  {.dims = 64, .codec = Codec::kInt4},
                                  {.dims = 16, .codec = Codec::kF16},
                                  {.dims = 32, .codec = Codec::kMinMax2}};
  const std::vector<Segment> v = {{.dims = 48, .codec = Codec::kInt4},
                                  {.dims = 16, .codec = Codec::kF32},
                                  {.dims = 16, .codec = Codec::kInt2}};
  for (const AttentionPath path : {AttentionPath::kReconstruct, AttentionPath::kAbsorbed}) {
    for (const int k_latent_heads : {1, 2, 4}) {
      for (const int v_latent_heads : {1, 4}) {
        ExpectAgreesWithReference({.path = path,
                                   .num_heads = 12,
                                   .num_kv_heads = 4,
                                   .head_dim = 64,
                                   .k_latent_heads = k_latent_heads,
                                   .v_latent_heads = v_latent_heads,
                                   .k = k,
                                   .v = v,
                                   .biases = true},
                                  {5, 64, 100}, 3);
      }
    }
  }
}

TEST_F(AttentionTest, AgreesOnEveryHeadShape) {
  for (const int head_dim : {8, 24, 40, 64, 80, 128, 256}) {
    for (const int q_per_kv : {1, 3, 7, 8}) {
      SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << " q_per_kv " << q_per_kv);
      AttentionShape shape = {.num_heads = 2 * q_per_kv, .head_dim = head_dim};
      const int padded = (head_dim + 15) / 16 * 16;
      shape.k = shape.v = One(padded, Codec::kF16);
      ExpectAgreesWithReference(shape, {66}, 4);
      shape.path = AttentionPath::kReconstruct;
      shape.k = One(48, Codec::kF16);
      shape.biases = true;
      ExpectAgreesWithReference(shape, {66}, 4);
      shape.rope_pairs = head_dim / 4;  // partly rotated heads
      ExpectAgreesWithReference(shape, {66}, 4);
      shape.path = AttentionPath::kAbsorbed;
      ExpectAgreesWithReference(shape, {66}, 4);
    }
  }
}

TEST_F(AttentionTest, AgreesRoundTheEdgesOfSplits) {
  for (const AttentionPath path :
       {AttentionPath::kFull, AttentionPath::kReconstruct, AttentionPath::kAbsorbed}) {
    for (const Codec codec : {Codec::kF16, Codec::kInt4}) {
      SCOPED_TRACE(testing::Message() << Name(path) << " " << Info(codec).name);
      ExpectAgreesWithReference({.path = path, .k = One(32, codec), .v = One(32, codec)},
                                {1023, 1024, 1025, 3000}, 3);
    }
  }
}

// Latent heads with queries enough for integer products of values and absorbed queries: shared by
// 6 of them and more.
TEST_F(AttentionTest, AgreesOnSharedLatentHeads) {
  const std::vector<Segment> preset_k = {{.dims = 32, .codec = Codec::kInt4},
                                         {.dims = 64, .codec = Codec::kInt2}};
  const std::vector<Segment> preset_v = {{.dims = 64, .codec = Codec::kInt4},
                                         {.dims = 96, .codec = Codec::kInt2}};
  const std::vector<Segment> odd = {{.dims = 16, .codec = Codec::kInt8},
                                    {.dims = 48, .codec = Codec::kInt3},
                                    {.dims = 80, .codec = Codec::kMinMax2}};
  for (const AttentionPath path : {AttentionPath::kReconstruct, AttentionPath::kAbsorbed}) {
    SCOPED_TRACE(Name(path));
    AttentionShape shape = {.path = path,
                            .num_heads = 9,
                            .num_kv_heads = 3,
                            .head_dim = 64,
                            .k_latent_heads = 1,
                            .v_latent_heads = 1,
                            .k = preset_k,
                            .v = preset_v,
                            .biases = true,
                            .sinks = 4,
                            .own_page = true};
    ExpectAgreesWithReference(shape, {5, 64, 200, 1100}, 1, PlanKinds());
    ExpectAgreesWithReference(shape, {30, 150}, 70, PlanKinds());
    shape.k = shape.v = odd;
    ExpectAgreesWithReference(shape, {130}, 3, PlanKinds());
    shape.num_heads = 20, shape.num_kv_heads = 4, shape.k_latent_heads = shape.v_latent_heads = 2;
    ExpectAgreesWithReference(shape, {130}, 3, PlanKinds());
    for (const Codec codec : kAllCodecs) {
      SCOPED_TRACE(Info(codec).name);
      shape.k = shape.v = One(32, codec);
      ExpectAgreesWithReference(shape, {130}, 3, PlanKinds());
    }
  }
}

TEST_F(AttentionTest, AgreesOnSharedLatentHeadsWithEveryKindOfCode) {
  ForEachKindOfCode([] {
    for (const AttentionPath path : {AttentionPath::kReconstruct, AttentionPath::kAbsorbed}) {
      for (const Codec codec : {Codec::kInt8, Codec::kInt4, Codec::kInt3, Codec::kInt2}) {
        SCOPED_TRACE(testing::Message() << Name(path) << " " << Info(codec).name);
        const std::vector<Segment> segments = {{.dims = 48, .codec = codec},
                                               {.dims = 32, .codec = Codec::kInt2}};
        ExpectAgreesWithReference({.path = path,
                                   .num_heads = 14,
                                   .k_latent_heads = 1,
                                   .v_latent_heads = 1,
                                   .k = segments,
                                   .v = segments,
                                   .biases = true,
                                   .sinks = 2,
                                   .own_page = true},
                                  {130}, 3);
      }
    }
  });
}

// What is allowed beside codes of 8 bits.
double EightBitTolerance() {
  return AttentionTolerance(
      {.path = AttentionPath::kReconstruct, .k = One(32, Codec::kInt8), .v = One(32, Codec::kF16)});
}

// Codes of 8 bits bound the error of what they hold, though others stand beside them.
TEST_F(AttentionTest, EightBitsBesideFewKeepTheirPrecision) {
  for (const PlanKind& kind : PlanKinds()) {
    for (const bool biases : {false, true}) {
      const AttentionCase c({.path = AttentionPath::kReconstruct,
                             .k = {{.dims = 32, .codec = Codec::kInt8},
                                   {.dims = 32, .codec = Codec::kInt4},
                                   {.dims = 16, .codec = Codec::kInt2}},
                             .v = One(32, Codec::kF16),
                             .biases = biases});
      PagedCache cache(c.spec().cache, {100});
      AttentionInputs inputs(c, cache.num_tokens());
      for (int64_t i = 0; i < std::ssize(inputs.k); ++i) {
        if (i % c.spec().cache.k.dims() >= 32) inputs.k[i] = 0.0f;
      }
      AttentionRun run(c, 1, kind);
      if (run.refused()) continue;
      run.AppendReference(inputs, cache, cache.WholeStep());
      const PagedStep step = cache.LastStep(5);
      EXPECT_LT(
          RelativeError(run.AttendReference(inputs, cache, step), run.Attend(inputs, cache, step)),
          EightBitTolerance());
    }
  }
}

// A dead dim's factors are next to nothing, not 0, and a token's latents may be 0.
TEST_F(AttentionTest, FactorsOfNextToNothingAreNothing) {
  for (const float size : {1e-14f, 1e-30f, 1e-41f}) {
    const AttentionCase c(
        {.path = AttentionPath::kReconstruct,
         .k_latent_heads = 1,
         .k = {{.dims = 32, .codec = Codec::kInt4}, {.dims = 16, .codec = Codec::kInt8}},
         .v = One(32, Codec::kF16),
         .biases = true});
    const int dims = c.spec().cache.k.dims();
    std::vector<float> k_up(c.spec().k_up, c.spec().k_up + int64_t{c.sink_width()} * dims);
    for (size_t i = 0; i < k_up.size(); ++i) {
      const bool few_bits = i % dims < 32;
      if (i / dims % 2 == 0 || few_bits) k_up[i] *= size;
    }
    AttentionSpec spec = c.spec();
    spec.k_up = k_up.data();
    PagedCache cache(spec.cache, {70});
    AttentionInputs inputs(c, cache.num_tokens());
    for (int d = 0; d < 32; ++d) inputs.k[5 * dims + d] = 0.0f;
    AttentionRun run(c, spec, 1);
    if (run.refused()) continue;
    run.AppendReference(inputs, cache, cache.WholeStep());
    const PagedStep step = cache.LastStep(2);
    EXPECT_LT(
        RelativeError(run.AttendReference(inputs, cache, step), run.Attend(inputs, cache, step)),
        EightBitTolerance())
        << size;
  }
}

// ---- What a layer keeps beside its blocks, and what changes its scores ----

const std::vector<Segment> kMixed = {{.dims = 16, .codec = Codec::kInt8},
                                     {.dims = 32, .codec = Codec::kInt4},
                                     {.dims = 48, .codec = Codec::kInt2}};

TEST_F(AttentionTest, AgreesOnSinksAndOwnPages) {
  for (const AttentionPath path : {AttentionPath::kReconstruct, AttentionPath::kAbsorbed}) {
    for (const int sinks : {0, 1, 4, 64}) {
      for (const bool own_page : {false, true}) {
        SCOPED_TRACE(testing::Message()
                     << Name(path) << " " << sinks << " sinks, own page " << own_page);
        AttentionShape shape = {.path = path,
                                .num_heads = 6,
                                .head_dim = 40,
                                .k_latent_heads = 1,
                                .k = kMixed,
                                .v = kMixed,
                                .biases = true,
                                .sinks = sinks,
                                .own_page = own_page};
        ExpectAgreesWithReference(shape, {0, 1, 3, 5, 64, 65, 200}, 70);
        ExpectAgreesWithReference(shape, {1, 4, 5, 64, 65, 1100}, 1);
        shape.k = shape.v = One(32, Codec::kF16);
        ExpectAgreesWithReference(shape, {3, 130}, 2);
      }
    }
  }
}

TEST_F(AttentionTest, AgreesOnWindows) {
  for (const AttentionPath path :
       {AttentionPath::kFull, AttentionPath::kReconstruct, AttentionPath::kAbsorbed}) {
    const bool full = path == AttentionPath::kFull;
    for (const int window : {1, 5, 63, 64, 65, 100, 1100}) {
      for (const int32_t q_len : {1, 70}) {
        SCOPED_TRACE(testing::Message() << Name(path) << " window " << window << " rows " << q_len);
        ExpectAgreesWithReference({.path = path,
                                   .num_heads = 6,
                                   .k = One(32, Codec::kInt4),
                                   .v = One(32, Codec::kInt4),
                                   .sinks = full ? 0 : 4,
                                   .own_page = !full,
                                   .window = window},
                                  {3, 64, 70, 130, 1300}, q_len);
      }
    }
  }
}

TEST_F(AttentionTest, AgreesOnAlibi) {
  for (const bool own_page : {false, true}) {
    const AttentionPath path = own_page ? AttentionPath::kAbsorbed : AttentionPath::kFull;
    for (const int window : {0, 90}) {
      ExpectAgreesWithReference({.path = path,
                                 .k = One(32, Codec::kInt4),
                                 .v = One(32, Codec::kF16),
                                 .sinks = own_page ? 4 : 0,
                                 .own_page = own_page,
                                 .window = window,
                                 .alibi = true},
                                {1, 65, 130, 1100}, 70);
    }
  }
}

TEST_F(AttentionTest, AgreesOnKeyNorms) {
  for (const std::vector<Segment>& k : {One(48, Codec::kF16), kMixed}) {
    for (const bool own_page : {false, true}) {
      for (const int rope_pairs : {0, 10}) {
        ExpectAgreesWithReference({.path = AttentionPath::kReconstruct,
                                   .k_latent_heads = 1,
                                   .k = k,
                                   .v = One(32, Codec::kF16),
                                   .rope_pairs = rope_pairs,
                                   .biases = true,
                                   .sinks = 4,
                                   .own_page = own_page,
                                   .k_norm = true},
                                  {1, 65, 130}, 70);
      }
    }
  }
}

}  // namespace
}  // namespace latentd
