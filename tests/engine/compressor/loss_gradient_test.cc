#include "engine/compressor/loss_gradient.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/random.h"
#include "gtest/gtest.h"
#include "tests/engine/compressor/changed_checkpoint.h"
#include "tests/engine/compressor/tested_algebra.h"
#include "tests/testing/random_values.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

constexpr int kVocab = 4500;  // more than one chunk of the head
constexpr int kTokens = 12;

class LossGradientTest : public OpsTest {
 protected:
  void SetUp() override {
    OpsTest::SetUp();
    if (IsSkipped()) return;
    auto opened = Checkpoint::Open(WriteTinyModel({.vocab = kVocab}));
    ASSERT_TRUE(opened.ok()) << opened.status();
    opened_ = *std::move(opened);
    checkpoint_ = std::make_unique<ChangedCheckpoint>(*opened_);
    hidden_dim_ = checkpoint_->config().hidden_dim;
    hidden_ = GaussianValues(kTokens * hidden_dim_, 1);
    for (int t = 0; t < kTokens; ++t) window_.push_back((t * 977 + 5) % kVocab);
  }

  absl::StatusOr<double> Loss(std::optional<uint64_t> seed, std::vector<float>* gradient) {
    const auto algebra = NewAlgebra(2);
    LossGradient loss(*checkpoint_, *algebra);
    EXPECT_TRUE(loss.Load().ok());
    gradient->assign(hidden_.size(), std::numeric_limits<float>::quiet_NaN());
    return loss.Run(window_, seed, hidden_.data(), gradient->data());
  }

  // Softmax of a position, by plain loops in double.
  std::vector<double> Prediction(int token) const {
    const std::string head = checkpoint_->config().tied_embeddings ? "token_embedding" : "lm_head";
    const std::vector<float> weight = ValuesOf(*checkpoint_, head),
                             norm = ValuesOf(*checkpoint_, "final_norm.weight");
    const float* x = hidden_.data() + token * hidden_dim_;
    double square = 0, sum = 0;
    for (int i = 0; i < hidden_dim_; ++i) square += double{x[i]} * x[i];
    const double inverse = 1 / std::sqrt(square / hidden_dim_ + checkpoint_->config().norm_epsilon);
    std::vector<double> p(kVocab);
    for (int v = 0; v < kVocab; ++v) {
      double logit = 0;
      for (int i = 0; i < hidden_dim_; ++i) {
        logit += double{weight[v * hidden_dim_ + i]} * x[i] * inverse * norm[i];
      }
      p[v] = std::exp(logit);
      sum += p[v];
    }
    for (double& value : p) value /= sum;
    return p;
  }

  std::unique_ptr<Checkpoint> opened_;
  std::unique_ptr<ChangedCheckpoint> checkpoint_;
  int hidden_dim_;
  std::vector<float> hidden_;
  std::vector<int32_t> window_;
};

TEST_F(LossGradientTest, TheTextsOwnTokensAreTheLabels) {
  std::vector<float> gradient, unused;
  const auto loss = Loss(std::nullopt, &gradient);
  ASSERT_TRUE(loss.ok()) << loss.status();
  double expected = 0;
  for (int t = 0; t + 1 < kTokens; ++t) expected -= std::log(Prediction(t)[window_[t + 1]]);
  EXPECT_NEAR(*loss, expected, 1e-4);
  for (const int i :
       {3, 5 * hidden_dim_ + 7, (kTokens - 2) * hidden_dim_, kTokens * hidden_dim_ - 1}) {
    const float centre = hidden_[i];
    hidden_[i] = centre + 0.02f;
    const double up = *Loss(std::nullopt, &unused);
    hidden_[i] = centre - 0.02f;
    const double down = *Loss(std::nullopt, &unused);
    hidden_[i] = centre;
    EXPECT_NEAR(gradient[i], (up - down) / 0.04, 2e-3) << i;
  }
  EXPECT_EQ(gradient.back(), 0);  // the last position predicts nothing
}

TEST_F(LossGradientTest, DrawnLabelsAreTheFirstToPassTheirNumber) {
  std::vector<float> gradient;
  double expected = 0;
  for (int t = 0; t < kTokens; ++t) {
    const std::vector<double> p = Prediction(t);
    double cumulative = 0;
    int label = 0;
    while ((cumulative += p[label]) <= RandomUniform(9, t)) ++label;
    expected -= std::log(p[label]);
  }
  EXPECT_NEAR(*Loss(9, &gradient), expected, 1e-4);
  EXPECT_NE(gradient.back(), 0);
}

// E over labels of the gradient is zero, of its square the Fisher information: a law that no fixed
// label keeps.
TEST_F(LossGradientTest, DrawnLabelsFollowThePrediction) {
  std::vector<double> sum(hidden_dim_), square(hidden_dim_);
  constexpr int kDraws = 400;
  for (int seed = 0; seed < kDraws; ++seed) {
    std::vector<float> gradient;
    ASSERT_TRUE(Loss(seed, &gradient).ok());
    for (int i = 0; i < hidden_dim_; ++i) {
      sum[i] += gradient[i];
      square[i] += double{gradient[i]} * gradient[i];
    }
  }
  for (int i = 0; i < hidden_dim_; ++i) {
    EXPECT_LT(std::abs(sum[i]), 5 * std::sqrt(square[i])) << i;
    EXPECT_GT(square[i], 0) << i;
  }
}

TEST_F(LossGradientTest, LogitsThatAreNotFiniteAreAnError) {
  hidden_[3 * hidden_dim_] = std::numeric_limits<float>::quiet_NaN();
  std::vector<float> gradient;
  EXPECT_EQ(Loss(1, &gradient).status(),
            absl::InternalError("the model's logits at position 3 of a window are not finite"));
}

}  // namespace
}  // namespace latentd
