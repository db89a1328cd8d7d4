#include "engine/compressor/palu.h"

#include <cmath>
#include <memory>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/compressor/random_matrix.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

absl::Status Ignore(double) { return absl::OkStatus(); }

TEST(Factorize, FullRankRebuildsEverything) {
  std::vector<double> energy;
  const auto factors = Factorize(RandomMoment(32, 2), 32, &energy);
  ASSERT_TRUE(factors.ok());
  const Matrix product = Multiply(factors->up, factors->down), identity = Identity(32);
  for (size_t i = 0; i < product.values.size(); ++i)
    EXPECT_NEAR(product.values[i], identity.values[i], 1e-9);
}

// The best error of rank r is the sum of the eigenvalues that are left out (Eckart and Young 1936);
// no factors reach less, and these reach it.
TEST(Factorize, ReachesTheLeastErrorOfItsRank) {
  const Matrix moment = RandomMoment(32, 4);
  const auto eigen = SymmetricEigen(moment);
  ASSERT_TRUE(eigen.ok());
  for (int rank : {1, 5, 16, 31}) {
    std::vector<double> energy;
    const auto factors = Factorize(moment, rank, &energy);
    ASSERT_TRUE(factors.ok());
    ASSERT_EQ(factors->down.rows, rank);
    double least = 0;
    for (int i = rank; i < 32; ++i) least += eigen->values[i];
    EXPECT_NEAR(LostEnergy(factors->up, factors->down, moment, Identity(32)), least,
                1e-9 * eigen->values[0])
        << rank;
    EXPECT_EQ(energy.size(), 32u);
  }
}

TEST(Factorize, DirectionsWithoutEnergyStayFinite) {
  Matrix moment(16, 16);
  moment.at(0, 0) = 1;
  std::vector<double> energy;
  const auto factors = Factorize(moment, 16, &energy);
  ASSERT_TRUE(factors.ok());
  for (double value : factors->down.values) EXPECT_TRUE(std::isfinite(value));
  for (double value : factors->up.values) EXPECT_TRUE(std::isfinite(value));
  EXPECT_NEAR(LostEnergy(factors->up, factors->down, moment, Identity(16)), 0, 1e-9);
}

class CompressPaluTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened =
        Checkpoint::Open(WriteTinyModel({.layers = 4, .heads = 8, .kv_heads = 4, .head_dim = 16}));
    ASSERT_TRUE(opened.ok()) << opened.status();
    checkpoint_ = std::move(*opened);
    for (int l = 0; l < 4; ++l) {
      LayerStatistics layer;
      for (PlaneStatistics* plane : {&layer.k, &layer.v}) {
        plane->second_moment = RandomMoment(64, 7 + l);
        plane->mean.assign(64, 0.1);
      }
      layer.k.weight_fisher_sum = 1 + l;  // of all planes' 26: 1, 2, 3, 4 and four times 4
      layer.v.weight_fisher_sum = 4;
      layer.k.weight_fisher_rms = 4;
      layer.v.weight_fisher_rms = 1;
      statistics_.push_back(std::move(layer));
    }
  }

  std::vector<int> Dims(const PaluOptions& options) {
    EXPECT_TRUE(Validate(options, checkpoint_->config()).ok());
    const auto factors = CompressPalu(*checkpoint_, statistics_, options, Ignore);
    EXPECT_TRUE(factors.ok()) << factors.status();
    std::vector<int> dims;
    for (const LayerFactors& layer : *factors) dims.push_back(layer.k.plane.dims());
    for (const LayerFactors& layer : *factors) dims.push_back(layer.v.plane.dims());
    return dims;
  }

  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<LayerStatistics> statistics_;
};

TEST_F(CompressPaluTest, RanksFollowTheAllocation) {
  const PaluOptions options{.rate = 0.5, .heads_per_group = 4};
  EXPECT_EQ(Dims(options), (std::vector<int>{32, 32, 32, 32, 32, 32, 32, 32}));
  PaluOptions fisher = options;
  fisher.allocation = RankAllocation::kFisherSum;
  const std::vector<int> sum = Dims(fisher);
  EXPECT_LT(sum[0], sum[3]);
  EXPECT_EQ(std::accumulate(sum.begin(), sum.end(), 0), 8 * 32);
  fisher.allocation = RankAllocation::kFisherRms;
  EXPECT_EQ(Dims(fisher), (std::vector<int>{48, 48, 48, 48, 16, 16, 16, 16}));
}

TEST_F(CompressPaluTest, KeysGetTheirShareOfTheDims) {
  EXPECT_EQ(Dims({.rate = 0.5, .k_dims = 0.25, .heads_per_group = 4}),
            (std::vector<int>{16, 16, 16, 16, 48, 48, 48, 48}));
}

TEST_F(CompressPaluTest, TheFactorsAreThoseOfTheProjection) {
  const PaluOptions options{.rate = 0, .bits = 32, .heads_per_group = 2, .sinks = 3};
  const auto factors = CompressPalu(*checkpoint_, statistics_, options, Ignore);
  ASSERT_TRUE(factors.ok());
  const LatentLayer layer = (*factors)[2].View(checkpoint_->config());
  EXPECT_EQ(layer.cache.sinks, 3);
  EXPECT_EQ(layer.cache.sink_dims, 64);
  EXPECT_FALSE(layer.cache.own_page);
  EXPECT_EQ(layer.k_mean.data, nullptr);
  EXPECT_EQ(layer.v_down.rows, 64);
  const TensorView weight = *checkpoint_->Find("layers.2.v.weight");
  std::vector<float> up(32), down(32), expected(32);
  for (int row = 0; row < 64; ++row) {  // up x down of its group is the row of the weight
    DequantizeRow(layer.v_up, row, absl::MakeSpan(up));
    DequantizeRow(weight, row, absl::MakeSpan(expected));
    std::vector<float> product(32);
    for (int i = 0; i < 32; ++i) {
      DequantizeRow(layer.v_down, row / 32 * 32 + i, absl::MakeSpan(down));
      for (int c = 0; c < 32; ++c) product[c] += up[i] * down[c];
    }
    for (int c = 0; c < 32; ++c) EXPECT_NEAR(product[c], expected[c], 1e-5);
  }
}

ModelConfig ConfigOf(int kv_heads, int head_dim) {
  ModelConfig config;
  config.num_layers = 2;
  config.num_kv_heads = kv_heads;
  config.head_dim = head_dim;
  return config;
}

TEST(PaluOptions, WrongValuesAreNamedWithWhatIsAllowed) {
  const ModelConfig config = ConfigOf(4, 64);
  EXPECT_TRUE(Validate(PaluOptions{.heads_per_group = 2}, config).ok());
  EXPECT_THAT(Validate(PaluOptions{.rate = 1, .heads_per_group = 2}, config).message(),
              HasSubstr("--rate is 1"));
  EXPECT_THAT(Validate(PaluOptions{.rate = std::nan(""), .heads_per_group = 2}, config).message(),
              HasSubstr("--rate is nan"));
  EXPECT_THAT(Validate(PaluOptions{.bits = 5, .heads_per_group = 2}, config).message(),
              HasSubstr("--bits is 5, allowed: 32"));
  EXPECT_THAT(Validate(PaluOptions{.heads_per_group = 1}, ConfigOf(4, 8)).message(),
              HasSubstr("8 dims"));
  EXPECT_THAT(Validate(PaluOptions{.k_dims = 0.01, .heads_per_group = 2}, config).message(),
              HasSubstr("--k-dims 0.01 gives a latent"));
  EXPECT_THAT(Validate(PaluOptions{.heads_per_group = 2, .sinks = 65}, config).message(),
              HasSubstr("--sinks is 65"));
  EXPECT_THAT(ParseRankAllocation("fisher").status().message(), HasSubstr("\"fisher\""));
  EXPECT_EQ(*ParseRankAllocation("fisher-rms"), RankAllocation::kFisherRms);
}

}  // namespace
}  // namespace latentd
