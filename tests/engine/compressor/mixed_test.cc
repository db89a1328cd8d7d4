#include "engine/compressor/mixed.h"

#include <cmath>
#include <memory>
#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/compressor/random_matrix.h"
#include "tests/testing/random_values.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

constexpr int kLayers = 3, kHeads = 4, kHeadDim = 32, kWidth = kHeads * kHeadDim, kHidden = 160;
constexpr int64_t kTokens = int64_t{1} << 40;  // so many that nothing is shrunk

absl::Status Ignore(double) { return absl::OkStatus(); }

Matrix Numbers(const TensorView& view) {
  Matrix out(static_cast<int>(view.rows), static_cast<int>(view.cols));
  std::vector<float> row(view.cols);
  for (int r = 0; r < out.rows; ++r) {
    DequantizeRow(view, r, absl::MakeSpan(row));
    std::copy(row.begin(), row.end(), out.values.begin() + int64_t{r} * view.cols);
  }
  return out;
}

// A K or V projection whose inputs x = mean + root n, n Gaussian, are known.
struct KnownPlane {
  Matrix weight, input_root, input_mean, fisher_root;

  Matrix InputMoment() const {
    Matrix moment = Multiply(input_root, Transpose::kNo, input_root, Transpose::kYes);
    const Matrix of_mean = Multiply(input_mean, Transpose::kNo, input_mean, Transpose::kYes);
    for (size_t i = 0; i < moment.values.size(); ++i) moment.values[i] += of_mean.values[i];
    return moment;
  }

  PlaneStatistics Statistics() const {
    return {.second_moment =
                Multiply(Multiply(weight, InputMoment()), Transpose::kNo, weight, Transpose::kYes),
            .mean = Multiply(weight, input_mean).values,
            .fisher = Multiply(fisher_root, Transpose::kNo, fisher_root, Transpose::kYes)};
  }
};

// Of `tokens` drawn inputs through down, the codec and up: half of the F-weighted error of what is
// cut, plus `code_share` times half of that of the codes.
double MeasuredLoss(const KnownPlane& known, const CachePlane& plane, const Matrix& down,
                    const Matrix& up, const Matrix& mean, const Matrix& offset, double code_share,
                    int tokens) {
  const std::vector<float> gaussian = GaussianValues(int64_t{tokens} * kHidden, 77);
  const int dims = plane.dims(), width = kWidth / plane.latent_heads;
  double loss = 0;
  for (int t = 0; t < tokens; ++t) {
    Matrix x(kHidden, 1);
    std::copy_n(gaussian.begin() + int64_t{t} * kHidden, kHidden, x.values.begin());
    x = Multiply(known.input_root, x);
    for (int i = 0; i < kHidden; ++i) x.at(i, 0) += known.input_mean.at(i, 0);
    const Matrix latent = Multiply(down, x);
    Matrix cut = Multiply(known.weight, x), coded(kWidth, 1);
    for (int head = 0; head < plane.latent_heads; ++head) {
      std::vector<float> row(dims), read(dims);
      for (int i = 0; i < dims; ++i) {
        row[i] = static_cast<float>(latent.at(head * dims + i, 0) - mean.at(0, head * dims + i));
      }
      std::vector<uint8_t> block(plane.head_bytes());
      WriteCacheRow(plane, block.data(), 5, row);
      ReadCacheRow(plane, block.data(), 5, absl::MakeSpan(read));
      for (int r = head * width; r < (head + 1) * width; ++r) {
        cut.at(r, 0) -= offset.at(0, r);
        for (int i = 0; i < dims; ++i) {
          cut.at(r, 0) -= up.at(r, i) * row[i];
          coded.at(r, 0) += up.at(r, i) * (row[i] - read[i]);
        }
      }
    }
    for (const auto& [error, share] : {std::pair(&cut, 1.0), std::pair(&coded, code_share)}) {
      for (const double value :
           Multiply(known.fisher_root, Transpose::kYes, *error, Transpose::kNo).values) {
        loss += share * value * value / 2 / tokens;
      }
    }
  }
  return loss;
}

class CompressMixedTest : public ::testing::Test {
 protected:
  void SetUp() override {
    auto opened = Checkpoint::Open(WriteTinyModel({.layers = kLayers,
                                                   .hidden = kHidden,
                                                   .heads = kHeads,
                                                   .kv_heads = kHeads,
                                                   .head_dim = kHeadDim}));
    ASSERT_TRUE(opened.ok()) << opened.status();
    checkpoint_ = std::move(*opened);
    for (int l = 0; l < kLayers; ++l) {
      k_.push_back(Known(l, "k"));
      v_.push_back(Known(l, "v"));
      statistics_.push_back({.k = k_.back().Statistics(), .v = v_.back().Statistics()});
    }
  }

  KnownPlane Known(int layer, const std::string& projection) const {
    const uint64_t seed = 10 * layer + (projection == "k" ? 1000 : 2000);
    const std::string name = "layers." + std::to_string(layer) + "." + projection + ".weight";
    Matrix mean = RandomMatrix(kHidden, 1, seed);
    for (double& value : mean.values) value *= 0.5;
    return {.weight = Numbers(*checkpoint_->Find(name)),
            .input_root = RandomRoot(kHidden, seed + 1, 0.97),
            .input_mean = mean,
            .fisher_root = RandomRoot(kWidth, seed + 2, 0.98)};
  }

  std::vector<LayerFactors> Compressed(MixedOptions options) {
    options.heads_per_group = options.heads_per_group > 0 ? options.heads_per_group : kHeads;
    EXPECT_TRUE(Validate(options, config()).ok()) << Validate(options, config());
    auto factors = CompressMixed(*checkpoint_, statistics_, kTokens, options, Ignore);
    EXPECT_TRUE(factors.ok()) << factors.status();
    return std::move(*factors);
  }
  const ModelConfig& config() const { return checkpoint_->config(); }

  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<KnownPlane> k_, v_;  // of each layer
  std::vector<LayerStatistics> statistics_;
};

double BytesPerToken(const std::vector<LayerFactors>& factors) {
  double bytes = 0;
  for (const LayerFactors& layer : factors) {
    bytes += static_cast<double>(layer.k.plane.plane_bytes() + layer.v.plane.plane_bytes());
  }
  return bytes / kBlockTokens;
}

TEST_F(CompressMixedTest, MeetsTheBudget) {
  const double full = static_cast<double>(config().full_bytes_per_token());
  for (const double ratio : {2.0, 4.0, 5.3, 7.7, 10.0}) {
    const double bytes = BytesPerToken(Compressed({.ratio = ratio}));
    EXPECT_LE(bytes, full / ratio);
    EXPECT_GE(bytes, full / ratio - 8) << "a block of dims more takes 8 bytes";
  }
  EXPECT_NEAR(BytesPerToken(Compressed({.bytes_per_token = 300})), 296, 4);
}

// Cuts cost all readers, codes only those on later pages: at one budget, dims win over bits.
TEST_F(CompressMixedTest, AnOwnPageKeepsMoreDims) {
  const auto dims = [&](bool own_page) {
    int sum = 0;
    for (const LayerFactors& layer : Compressed({.ratio = 5.3, .own_page = own_page})) {
      EXPECT_EQ(layer.own_page, own_page);
      sum += layer.k.plane.dims() + layer.v.plane.dims();
    }
    return sum;
  };
  EXPECT_GT(dims(true), dims(false));
}

TEST_F(CompressMixedTest, KeysTakeTheirShareOfTheBytes) {
  const auto factors = Compressed({.ratio = 5, .k_share = 0.3});
  double k = 0;
  for (const LayerFactors& layer : factors) k += static_cast<double>(layer.k.plane.plane_bytes());
  EXPECT_NEAR(k / kBlockTokens / BytesPerToken(factors), 0.3, 0.01);
}

// With all dims kept, up x (down x - mean) + offset is W x: the same keys, whatever the basis.
TEST_F(CompressMixedTest, AllDimsRebuildTheProjectionAndTheMeansCancel) {
  for (const int group : {1, kHeads}) {
    // Every dim in a byte, and a scale for each latent head of the six planes.
    const double bytes = 2 * kLayers * (kWidth + 2 * kHeads / group);
    const auto factors = Compressed({.bytes_per_token = bytes,
                                     .widths = {.widths = {8}, .block_dims = 32},
                                     .heads_per_group = group});
    const LatentLayer layer = factors[1].View(config());
    EXPECT_EQ(layer.cache.sinks, 4);
    EXPECT_TRUE(layer.cache.own_page);
    const int dims = group * kHeadDim;
    ASSERT_EQ(layer.cache.k.dims(), dims);
    const Matrix up = Numbers(layer.k_up), down = Numbers(layer.k_down);
    const Matrix weight = Numbers(*checkpoint_->Find("layers.1.k.weight"));
    const Matrix mean = Numbers(layer.k_mean), offset = Numbers(layer.k_offset);
    for (int r = 0; r < kWidth; ++r) {
      const int head = r / dims;
      double taken_out = 0;
      for (int i = 0; i < dims; ++i) taken_out += up.at(r, i) * mean.at(0, head * dims + i);
      EXPECT_NEAR(taken_out, offset.at(0, r), 2e-3);
      EXPECT_FLOAT_EQ(offset.at(0, r), statistics_[1].k.mean[r]);
      for (int c = 0; c < kHidden; ++c) {
        double product = 0;
        for (int i = 0; i < dims; ++i) product += up.at(r, i) * down.at(head * dims + i, c);
        EXPECT_NEAR(product, weight.at(r, c), 2e-3);
      }
    }
  }
}

// Gaussian keys of the statistics' mean and moment through down, codec and up: half of their
// F-weighted error, codes counted as their share, is what was predicted.
TEST_F(CompressMixedTest, PredictsTheWeightedErrorOfRealCodes) {
  for (const int group : {1, kHeads}) {
    for (const auto& [ratio, own_page] : {std::pair(3.0, true), std::pair(5.3, false),
                                          std::pair(5.3, true), std::pair(8.0, false)}) {
      const auto factors = Compressed({.ratio = ratio,
                                       .widths = {.widths = {8, 4, 3, 2}, .block_dims = 16},
                                       .heads_per_group = group,
                                       .own_page = own_page});
      double predicted = 0, measured = 0;
      for (int l = 0; l < kLayers; ++l) {
        predicted += factors[l].k.predicted_kl + factors[l].v.predicted_kl;
        const LatentLayer layer = factors[l].View(config());
        measured +=
            MeasuredLoss(k_[l], layer.cache.k, Numbers(layer.k_down), Numbers(layer.k_up),
                         Numbers(layer.k_mean), Numbers(layer.k_offset), CodeShare(own_page), 500);
        measured +=
            MeasuredLoss(v_[l], layer.cache.v, Numbers(layer.v_down), Numbers(layer.v_up),
                         Numbers(layer.v_mean), Numbers(layer.v_offset), CodeShare(own_page), 500);
      }
      EXPECT_NEAR(predicted / measured, 1, 0.1) << group << " " << ratio << " " << own_page;
    }
  }
}

// Of all scales of the dims, those by the deviation about the mean cost least (Cauchy and Schwarz).
TEST_F(CompressMixedTest, CodesOfAllDimsCostTheSquareOfTheSummedDeviations) {
  const auto factors = Compressed({.bytes_per_token = 2 * kLayers * (kWidth / 2 + 2),
                                   .widths = {.widths = {4}, .block_dims = kWidth}});
  const auto eigen = SymmetricEigen(Multiply(
      Multiply(k_[0].fisher_root, Transpose::kYes, statistics_[0].k.second_moment, Transpose::kNo),
      k_[0].fisher_root));
  ASSERT_TRUE(eigen.ok());
  const Matrix mean =
      Multiply(Multiply(eigen->vectors, Transpose::kYes, k_[0].fisher_root, Transpose::kYes),
               Multiply(k_[0].weight, k_[0].input_mean));
  double sum = 0;
  for (int i = 0; i < kWidth; ++i) {
    sum += std::sqrt(std::max(0.0, eigen->values[i] - mean.at(i, 0) * mean.at(i, 0)));
  }
  const double want =
      CodeShare(/*own_page=*/true) * CodeError(Codec::kInt4, kWidth) * sum * sum / (2 * kWidth);
  EXPECT_NEAR(factors[0].k.predicted_kl / want, 1, 1e-4);
}

// The mean is taken out of the codes: values that never differ from it cost nothing.
TEST_F(CompressMixedTest, AConstantPlaneTakesNoBits) {
  PlaneStatistics& plane = statistics_[0].v;
  const Matrix mean = Multiply(v_[0].weight, v_[0].input_mean);
  plane.second_moment = Multiply(mean, Transpose::kNo, mean, Transpose::kYes);
  const auto factors = Compressed({.ratio = 5.3});
  EXPECT_LT(factors[0].v.predicted_kl, 1e-6 * factors[0].k.predicted_kl);
  EXPECT_EQ(factors[0].v.plane.dims(), 32) << "the first block is never cut";
  EXPECT_EQ(factors[0].v.plane.segments[0].codec, Codec::kInt2);
}

// What factors of rank r lose of the F-weighted energy is the sum of the eigenvalues from the r-th
// on of F^(1/2) E[y y^T] F^(1/2), or with any other root of F (Eckart and Young 1936): no basis of
// the same rank loses less.
TEST_F(CompressMixedTest, LosesTheLeastWeightedEnergyOfItsRank) {
  const auto factors = Compressed({.ratio = 5, .widths = {.widths = {8}, .block_dims = 16}});
  for (int l = 0; l < kLayers; ++l) {
    const int rank = factors[l].k.plane.dims();
    ASSERT_LT(rank, kWidth);
    const auto eigen =
        SymmetricEigen(Multiply(Multiply(k_[l].fisher_root, Transpose::kYes,
                                         statistics_[l].k.second_moment, Transpose::kNo),
                                k_[l].fisher_root));
    ASSERT_TRUE(eigen.ok());
    const double least = std::accumulate(eigen->values.begin() + rank, eigen->values.end(), 0.0);
    const LatentLayer layer = factors[l].View(config());
    Matrix rest = Multiply(Numbers(layer.k_up), Numbers(layer.k_down));
    for (size_t i = 0; i < rest.values.size(); ++i) rest.values[i] -= k_[l].weight.values[i];
    const Matrix weighted = Multiply(k_[l].fisher_root, Transpose::kYes, rest, Transpose::kNo);
    const Matrix lost = Multiply(Multiply(weighted, k_[l].InputMoment()), Transpose::kNo, weighted,
                                 Transpose::kYes);
    double trace = 0;
    for (int i = 0; i < kWidth; ++i) trace += lost.at(i, i);
    EXPECT_NEAR(trace / least, 1, 1e-3);
    const double all = std::accumulate(eigen->values.begin(), eigen->values.end(), 0.0);
    EXPECT_NEAR(1 - factors[l].k.EnergyKept(), least / all, 1e-9);
  }
}

TEST_F(CompressMixedTest, APlaneOnWhichNothingDependsStaysFinite) {
  statistics_[0].v.fisher = Matrix(kWidth, kWidth);
  statistics_[1].k.second_moment = Matrix(kWidth, kWidth);
  statistics_[1].k.mean.assign(kWidth, 0.0);
  for (const LayerFactors& layer : Compressed({.ratio = 4})) {
    const LatentLayer view = layer.View(config());
    for (const TensorView& numbers : {view.k_up, view.k_down, view.v_up, view.v_down}) {
      for (const double value : Numbers(numbers).values) ASSERT_TRUE(std::isfinite(value));
    }
  }
}

TEST(Shrinkage, FallsWithTokensPerRow) {
  EXPECT_NEAR(Shrinkage(48 * 1020, 192), 0.05, 0.001);
  EXPECT_NEAR(Shrinkage(13000, 256), 0.25, 0.003);
  EXPECT_EQ(Shrinkage(100, 256), 0.5);
}

TEST(MixedOptions, WrongValuesAreNamedWithWhatIsAllowed) {
  ModelConfig config;
  config.num_layers = 30;
  config.num_kv_heads = 3;
  config.head_dim = 64;
  const auto message = [&](MixedOptions options) {
    options.heads_per_group = 3;
    return std::string(Validate(options, config).message());
  };
  EXPECT_EQ(message({}), "");
  EXPECT_THAT(message({.ratio = 0}), HasSubstr("--ratio is 0"));
  EXPECT_THAT(message({.ratio = 60}),
              HasSubstr("--ratio is 60, 384 bytes per token; these widths and blocks allow 600 to "
                        "11640 bytes, a ratio of 38.4 to 1.97938"));
  EXPECT_THAT(message({.ratio = 1.5}), HasSubstr("--ratio is 1.5, 15360 bytes per token"));
  EXPECT_THAT(message({.bytes_per_token = 100}), HasSubstr("--bytes-per-token is 100; these"));
  EXPECT_THAT(message({.ratio = 4, .k_share = 0.02}),
              HasSubstr("--k-share is 0.02, which leaves 115.2 bytes per token"));
  EXPECT_THAT(message({.ratio = 4, .k_share = 0.98}),
              HasSubstr("--k-share is 0.98, which leaves 115.2 bytes per token"));
  config.qk_norm = true;  // 2 bytes for each KV head of each layer
  EXPECT_THAT(message({.ratio = 60}), HasSubstr("allow 780 to 11820 bytes"));
  EXPECT_EQ(message({.bytes_per_token = 780}), "");
  EXPECT_THAT(message({.k_share = 1.5}), HasSubstr("--k-share is 1.5"));
  EXPECT_THAT(message({.widths = {.widths = {2, 4}}}), HasSubstr("--bit-widths is 2,4"));
  EXPECT_THAT(message({.widths = {.widths = {8, 5}}}), HasSubstr("--bit-widths is 8,5"));
  EXPECT_THAT(message({.widths = {.block_dims = 24}}), HasSubstr("--block is 24"));
  EXPECT_THAT(message({.sinks = 65}), HasSubstr("--sinks is 65"));
}

}  // namespace
}  // namespace latentd
