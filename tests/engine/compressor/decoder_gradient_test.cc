#include "engine/compressor/decoder_gradient.h"

#include <cmath>

#include "gtest/gtest.h"
#include "tests/engine/compressor/changed_checkpoint.h"
#include "tests/engine/compressor/tested_algebra.h"
#include "tests/testing/random_values.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

// A model of any shape that the decoder knows, made from a family by changing its facts.
struct Case {
  const char* name;
  const char* family;
  void (*change)(ChangedCheckpoint&);
};

class DecoderGradientTest : public OpsTest, public ::testing::WithParamInterface<Case> {
 protected:
  void SetUp() override {
    OpsTest::SetUp();
    if (IsSkipped()) return;
    auto opened = Checkpoint::Open(WriteTinyModel({.family = GetParam().family, .vocab = 64}));
    ASSERT_TRUE(opened.ok()) << opened.status();
    opened_ = *std::move(opened);
    checkpoint_ = std::make_unique<ChangedCheckpoint>(*opened_);
    GetParam().change(*checkpoint_);
    for (int t = 0; t < 20; ++t) window_.push_back((t * 29 + 3) % 64);
  }

  static absl::Status Ignore(double) { return absl::OkStatus(); }

  double Loss() {
    const auto algebra = NewAlgebra(1);
    const auto decoder = DecoderGradient::Create(*checkpoint_, 20, *algebra);
    EXPECT_TRUE(decoder.ok()) << decoder.status();
    const auto loss = (*decoder)->Backward(
        window_, std::nullopt, [](int, const LayerProjections&) { return absl::OkStatus(); },
        Ignore);
    EXPECT_TRUE(loss.ok()) << loss.status();
    return *loss;
  }

  // The loss's slope along one value of the checkpoint.
  double Slope(float* value) {
    constexpr float kStep = 0.01f;
    const float centre = *value;
    *value = centre + kStep;
    const double up = Loss();
    *value = centre - kStep;
    const double down = Loss();
    *value = centre;
    return (up - down) / (2 * kStep);
  }

  std::unique_ptr<Checkpoint> opened_;
  std::unique_ptr<ChangedCheckpoint> checkpoint_;
  std::vector<int32_t> window_;
};

// dL/dW = sum of g x^T over the tokens, g the gradient by y = W x.
TEST_P(DecoderGradientTest, GradientsOfProjectionsAreTheLosssSlopes) {
  const ModelConfig& config = checkpoint_->config();
  const int kv = config.kv_dim(), hidden = config.hidden_dim;
  std::vector<std::vector<float>> weights(2 * config.num_layers, std::vector<float>(kv * hidden));
  const auto algebra = NewAlgebra(2);
  const auto decoder = DecoderGradient::Create(*checkpoint_, 20, *algebra);
  ASSERT_TRUE(decoder.ok()) << decoder.status();
  int last_layer = config.num_layers;
  const auto observe = [&](int layer, const LayerProjections& p) {
    EXPECT_EQ(layer, --last_layer);
    const float* gradients[] = {p.k.gradient, p.v.gradient};
    for (int plane = 0; plane < 2; ++plane) {
      for (int64_t t = 0; t < p.tokens; ++t) {
        for (int i = 0; i < kv * hidden; ++i) {
          weights[2 * layer + plane][i] +=
              gradients[plane][t * kv + i / hidden] * p.input[t * hidden + i % hidden];
        }
      }
    }
    return absl::OkStatus();
  };
  ASSERT_TRUE((*decoder)->Backward(window_, std::nullopt, observe, Ignore).ok());
  for (int l = 0; l < config.num_layers; ++l) {
    for (int plane = 0; plane < 2; ++plane) {
      std::vector<float>& values =
          checkpoint_->Values(absl::StrCat("layers.", l, plane == 0 ? ".k.weight" : ".v.weight"));
      const std::vector<float>& found = weights[2 * l + plane];
      double square = 0;
      for (const float value : found) square += double{value} * value;
      const double typical = std::sqrt(square / found.size());
      EXPECT_GT(typical, 1e-3);
      for (const int i : {0, 5 * hidden + 3, (kv - 1) * hidden + 17}) {
        const double slope = Slope(&values[i]);
        EXPECT_NEAR(found[i], slope, 0.01 * (std::abs(slope) + typical)) << l << plane << i;
      }
    }
  }
}

TEST_P(DecoderGradientTest, ForwardsShowsTheSameProjections) {
  std::vector<std::vector<float>> found(2);
  const auto algebra = NewAlgebra(1);
  const auto decoder = DecoderGradient::Create(*checkpoint_, 20, *algebra);
  ASSERT_TRUE(decoder.ok()) << decoder.status();
  const int kv = checkpoint_->config().kv_dim();
  ASSERT_TRUE((*decoder)
                  ->Forward(
                      window_,
                      [&](int layer, const LayerProjections& p) {
                        EXPECT_EQ(p.k.gradient, nullptr);
                        found[layer].assign(p.k.output, p.k.output + p.tokens * kv);
                        return absl::OkStatus();
                      },
                      Ignore)
                  .ok());
  ASSERT_TRUE((*decoder)
                  ->Backward(
                      window_, 1,
                      [&](int layer, const LayerProjections& p) {
                        EXPECT_EQ(found[layer],
                                  std::vector<float>(p.k.output, p.k.output + p.tokens * kv));
                        return absl::OkStatus();
                      },
                      Ignore)
                  .ok());
}

TEST_P(DecoderGradientTest, AMissingTensorIsNamed) {
  checkpoint_->config().num_layers = 3;
  const auto algebra = NewAlgebra(1);
  const auto decoder = DecoderGradient::Create(*checkpoint_, 20, *algebra);
  ASSERT_TRUE(decoder.ok());
  EXPECT_EQ((*decoder)
                ->Forward(
                    window_, [](int, const LayerProjections&) { return absl::OkStatus(); }, Ignore)
                .code(),
            absl::StatusCode::kNotFound);
}

void AddQkNorm(ChangedCheckpoint& model) {
  model.config().qk_norm = true;
  for (int l = 0; l < model.config().num_layers; ++l) {
    for (const char* name : {"q_norm", "k_norm"}) {
      std::vector<float> weight = GaussianValues(model.config().head_dim, l + name[0], 0.3f);
      for (float& value : weight) value += 1;
      model.Add(absl::StrCat("layers.", l, ".", name, ".weight"), model.config().head_dim, weight);
    }
  }
}

void ScaleRope(ChangedCheckpoint& model) {
  model.config().rope.scaling = RopeConfig::Scaling::kYarn;
  model.config().rope.factor = 4;
  model.config().rope.original_max_positions = 64;
}

INSTANTIATE_TEST_SUITE_P(
    Families, DecoderGradientTest,
    ::testing::Values(
        Case{"Llama", "llama", [](ChangedCheckpoint&) {}}, Case{"LlamaYarn", "llama", ScaleRope},
        Case{"Qwen2", "qwen2", [](ChangedCheckpoint&) {}},
        Case{"Gpt2", "gpt2", [](ChangedCheckpoint&) {}},
        Case{"Qwen3", "qwen3", [](ChangedCheckpoint&) {}},
        Case{"Bloom", "bloom", [](ChangedCheckpoint&) {}}, Case{"QkNorm", "qwen2", AddQkNorm},
        Case{"SlidingWindow", "llama", [](ChangedCheckpoint& m) { m.config().sliding_window = 6; }},
        Case{"Alibi", "gpt2",
             [](ChangedCheckpoint& m) { m.config().position = PositionKind::kAlibi; }}),
    [](const auto& info) { return std::string(info.param.name); });

}  // namespace
}  // namespace latentd
