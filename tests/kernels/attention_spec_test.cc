#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/ops.h"

namespace latentd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr int kHeadDim = 24, kKvHeads = 4, kLatentDims = 48;

// Factors and biases, as large as any.
const std::vector<float> kFactors(kKvHeads* kHeadDim* kLatentDims, 0.5f);

CachePlane LatentPlane(TileOrder order) {
  return {.latent_heads = 2,
          .segments = {{.dims = kLatentDims, .codec = Codec::kInt4}},
          .order = order};
}

AttentionSpec FullSpec() {
  return {.path = AttentionPath::kFull,
          .num_heads = 8,
          .num_kv_heads = kKvHeads,
          .head_dim = kHeadDim,
          .softmax_scale = 0.2f,
          .cache = FullCacheLayer(kKvHeads, kHeadDim)};
}

AttentionSpec AbsorbedSpec() {
  return {
      .path = AttentionPath::kAbsorbed,
      .num_heads = 8,
      .num_kv_heads = kKvHeads,
      .head_dim = kHeadDim,
      .softmax_scale = 0.2f,
      .cache = {.k = LatentPlane(TileOrder::kDimMajor), .v = LatentPlane(TileOrder::kTokenMajor)},
      .k_up = kFactors.data(),
      .v_up = kFactors.data()};
}

RopeTable Table(int pairs) {
  return {.pairs = pairs,
          .max_positions = 3,
          .cos = std::vector<float>(3 * pairs, 1.0f),
          .sin = std::vector<float>(3 * pairs, 0.0f)};
}

AttentionSpec ReconstructSpec(const RopeTable& table) {
  AttentionSpec spec = AbsorbedSpec();
  spec.path = AttentionPath::kReconstruct;
  spec.rope = &table;
  return spec;
}

std::string ErrorOf(AttentionSpec spec, const std::function<void(AttentionSpec&)>& spoil) {
  spoil(spec);
  const absl::Status status = ValidateAttention(spec);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST(ValidateAttention, TakesEveryPath) {
  const RopeTable table = Table(12), partial = Table(4);
  EXPECT_EQ(ValidateAttention(FullSpec()), absl::OkStatus());
  EXPECT_EQ(ValidateAttention(AbsorbedSpec()), absl::OkStatus());
  EXPECT_EQ(ValidateAttention(ReconstructSpec(table)), absl::OkStatus());
  EXPECT_EQ(ValidateAttention(ReconstructSpec(partial)), absl::OkStatus());
  AttentionSpec biased = ReconstructSpec(table);
  biased.k_bias = biased.v_bias = kFactors.data();
  EXPECT_EQ(ValidateAttention(biased), absl::OkStatus());
}

TEST(ValidateAttention, NamesWhatDisagrees) {
  const auto full = [](const auto& spoil) { return ErrorOf(FullSpec(), spoil); };
  EXPECT_THAT(full([](AttentionSpec& s) { s.head_dim = 0; }), HasSubstr("head_dim"));
  EXPECT_THAT(full([](AttentionSpec& s) { s.num_kv_heads = 0; }), HasSubstr("num_kv_heads"));
  EXPECT_THAT(full([](AttentionSpec& s) { s.num_heads = 9; }),
              AllOf(HasSubstr("num_heads is 9"), HasSubstr("4")));
  EXPECT_THAT(full([](AttentionSpec& s) { s.num_heads = 0; }), HasSubstr("num_heads is 0"));
  for (const float bad : {0.0f, -1.0f, NAN, INFINITY}) {
    EXPECT_THAT(full([bad](AttentionSpec& s) { s.softmax_scale = bad; }),
                HasSubstr("softmax_scale"));
  }
  EXPECT_THAT(full([](AttentionSpec& s) { s.cache.k.latent_heads = 2; }),
              AllOf(HasSubstr("k.latent_heads is 2"), HasSubstr("4")));
  EXPECT_THAT(full([](AttentionSpec& s) { s.cache.v.segments[0].dims = 48; }),
              AllOf(HasSubstr("v.dims is 48"), HasSubstr("32")));
  EXPECT_THAT(full([](AttentionSpec& s) { s.cache.v.segments.clear(); }), HasSubstr("v.segments"));
  EXPECT_THAT(full([](AttentionSpec& s) { s.cache.k.segments[0].dims = 24; }), HasSubstr("24"));
  EXPECT_THAT(full([](AttentionSpec& s) { s.cache.k.order = TileOrder::kTokenMajor; }),
              HasSubstr("k.order"));
  EXPECT_THAT(full([](AttentionSpec& s) { s.k_up = kFactors.data(); }), HasSubstr("factors"));
  EXPECT_THAT(full([](AttentionSpec& s) { s.v_bias = kFactors.data(); }), HasSubstr("biases"));
}

TEST(ValidateAttention, NamesWhatALatentPathLacks) {
  const auto absorbed = [](const auto& spoil) { return ErrorOf(AbsorbedSpec(), spoil); };
  EXPECT_THAT(absorbed([](AttentionSpec& s) { s.k_up = nullptr; }),
              AllOf(HasSubstr("k_up"), HasSubstr("48")));
  EXPECT_THAT(absorbed([](AttentionSpec& s) { s.v_up = nullptr; }), HasSubstr("v_up"));
  EXPECT_THAT(absorbed([](AttentionSpec& s) { s.cache.k.latent_heads = 3; }),
              AllOf(HasSubstr("k.latent_heads is 3"), HasSubstr("4")));
  const RopeTable table = Table(12);
  EXPECT_THAT(absorbed([&](AttentionSpec& s) { s.rope = &table; }), HasSubstr("rope"));
}

TEST(ValidateAttention, FactorsAreFinite) {
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    std::vector<float> factors = kFactors;
    factors.back() = bad;
    const auto absorbed = [](const auto& spoil) { return ErrorOf(AbsorbedSpec(), spoil); };
    EXPECT_THAT(absorbed([&](AttentionSpec& s) { s.k_up = factors.data(); }),
                AllOf(HasSubstr("k_up"), HasSubstr("value 4607 of 4608")));
    EXPECT_THAT(absorbed([&](AttentionSpec& s) { s.v_up = factors.data(); }), HasSubstr("v_up"));
    const float* bias = &factors.back() - (kKvHeads * kHeadDim - 1);
    const RopeTable table = Table(12);
    EXPECT_THAT(ErrorOf(ReconstructSpec(table), [&](AttentionSpec& s) { s.k_bias = bias; }),
                AllOf(HasSubstr("k_bias"), HasSubstr("value 95 of 96")));
    EXPECT_THAT(absorbed([&](AttentionSpec& s) { s.v_bias = bias; }), HasSubstr("v_bias"));
  }
}

void AddSinks(AttentionSpec& spec) {
  spec.cache.sinks = 4;
  spec.cache.sink_dims = kKvHeads * kHeadDim;
}

void AddKeyNorm(AttentionSpec& spec) {
  spec.k_norm = kFactors.data();
  spec.cache.key_norms = kKvHeads;
}

TEST(ValidateAttention, TakesSinksOwnPagesNormsWindowsAndSlopes) {
  const RopeTable table = Table(12);
  AttentionSpec reconstruct = ReconstructSpec(table), absorbed = AbsorbedSpec(), full = FullSpec();
  AddSinks(reconstruct);
  AddKeyNorm(reconstruct);
  reconstruct.cache.own_page = true;
  EXPECT_EQ(ValidateAttention(reconstruct), absl::OkStatus());
  AddSinks(absorbed);
  for (AttentionSpec* spec : {&absorbed, &full}) {
    spec->window = 3;
    spec->alibi_slopes = kFactors.data();
    EXPECT_EQ(ValidateAttention(*spec), absl::OkStatus());
  }
}

TEST(ValidateAttention, SinksAndOwnPagesAreOfLatentCaches) {
  const auto full = [](const auto& spoil) { return ErrorOf(FullSpec(), spoil); };
  EXPECT_THAT(full(AddSinks), AllOf(HasSubstr("full"), HasSubstr("4 sinks")));
  EXPECT_THAT(full([](AttentionSpec& s) { s.cache.own_page = true; }), HasSubstr("1 own page"));
  AttentionSpec spec = AbsorbedSpec();
  AddSinks(spec);
  EXPECT_THAT(ErrorOf(spec, [](AttentionSpec& s) { s.cache.sink_dims = 95; }),
              AllOf(HasSubstr("sink_dims is 95"), HasSubstr("96")));
  EXPECT_THAT(ErrorOf(spec, [](AttentionSpec& s) { s.cache.sinks = 0; }),
              AllOf(HasSubstr("sink_dims is 96"), HasSubstr("must be 0")));
  for (const int sinks : {-1, 65}) {
    EXPECT_THAT(ErrorOf(spec, [&](AttentionSpec& s) { s.cache.sinks = sinks; }),
                AllOf(HasSubstr(std::to_string(sinks)), HasSubstr("64")));
  }
}

TEST(ValidateAttention, KeyNormsAreOfRebuiltKeys) {
  const RopeTable table = Table(12);
  EXPECT_THAT(ErrorOf(AbsorbedSpec(), AddKeyNorm), HasSubstr("absorbed takes no k_norm"));
  EXPECT_THAT(ErrorOf(FullSpec(), AddKeyNorm), HasSubstr("full takes no k_norm"));
  AttentionSpec spec = ReconstructSpec(table);
  EXPECT_THAT(ErrorOf(spec, [](AttentionSpec& s) { s.cache.key_norms = 4; }),
              AllOf(HasSubstr("key_norms is 4"), HasSubstr("must be 0")));
  AddKeyNorm(spec);
  EXPECT_THAT(ErrorOf(spec, [](AttentionSpec& s) { s.cache.key_norms = 2; }),
              AllOf(HasSubstr("key_norms is 2"), HasSubstr("must be 4")));
  std::vector<float> norm(kHeadDim, 1.0f);
  norm[5] = NAN;
  EXPECT_THAT(ErrorOf(spec, [&](AttentionSpec& s) { s.k_norm = norm.data(); }),
              AllOf(HasSubstr("k_norm"), HasSubstr("value 5 of 24")));
  for (const float epsilon : {-1e-6f, INFINITY, NAN}) {
    EXPECT_THAT(ErrorOf(spec, [&](AttentionSpec& s) { s.k_norm_epsilon = epsilon; }),
                HasSubstr("k_norm_epsilon"));
  }
}

TEST(ValidateAttention, ChecksWindowsSlopesAndBiases) {
  const RopeTable table = Table(12);
  EXPECT_THAT(ErrorOf(FullSpec(), [](AttentionSpec& s) { s.window = -1; }),
              HasSubstr("window is -1"));
  EXPECT_THAT(
      ErrorOf(ReconstructSpec(table), [](AttentionSpec& s) { s.alibi_slopes = kFactors.data(); }),
      HasSubstr("alibi_slopes"));
  std::vector<float> slopes(8, 0.5f);
  slopes[7] = INFINITY;
  EXPECT_THAT(ErrorOf(FullSpec(), [&](AttentionSpec& s) { s.alibi_slopes = slopes.data(); }),
              AllOf(HasSubstr("alibi_slopes"), HasSubstr("value 7 of 8")));
  EXPECT_THAT(ErrorOf(AbsorbedSpec(), [](AttentionSpec& s) { s.k_bias = kFactors.data(); }),
              HasSubstr("absorbed takes no k_bias"));
}

TEST(ValidateAttention, ChecksTheRopeTable) {
  RopeTable table = Table(12), wide = Table(13), cut = Table(12);
  cut.sin.pop_back();
  const auto reconstruct = [&](const RopeTable* rope) {
    return ErrorOf(ReconstructSpec(table), [&](AttentionSpec& s) { s.rope = rope; });
  };
  EXPECT_THAT(reconstruct(nullptr), HasSubstr("rope"));
  EXPECT_THAT(reconstruct(&wide), AllOf(HasSubstr("13"), HasSubstr("12")));
  EXPECT_THAT(reconstruct(&cut), AllOf(HasSubstr("35"), HasSubstr("36")));
}

TEST(AttentionPath, HasNames) {
  EXPECT_STREQ(Name(AttentionPath::kFull), "full");
  EXPECT_STREQ(Name(AttentionPath::kReconstruct), "reconstruct");
  EXPECT_STREQ(Name(AttentionPath::kAbsorbed), "absorbed");
}

}  // namespace
}  // namespace latentd
