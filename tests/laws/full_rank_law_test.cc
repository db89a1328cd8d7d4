// Latents that keep every dim, in numbers that lose nothing, are the full cache: whatever is exact,
// taken out as a mean or normed, the logits stay.

#include <cmath>

#include "base/random.h"
#include "gtest/gtest.h"
#include "tests/testing/altered_checkpoint.h"
#include "tests/testing/decoder_harness.h"
#include "tests/testing/test_latents.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

constexpr float kExact = 1e-4f;
constexpr float kHalf = 1e-2f;

struct FullRankCase {
  std::string name;
  std::string family = "llama";
  void (*change)(ModelConfig&) = [](ModelConfig&) {};
};

class FullRankLaw : public ::testing::TestWithParam<FullRankCase> {
 protected:
  void SetUp() override {
    auto base = Checkpoint::Open(WriteTinyModel({.family = GetParam().family}));
    ASSERT_TRUE(base.ok()) << base.status();
    checkpoint_ = std::make_unique<AlteredCheckpoint>(*std::move(base), GetParam().change);
    for (int i = 0; i < 150; ++i) {
      tokens_.push_back(static_cast<int32_t>(RandomBits(1, i) % checkpoint_->config().vocab_size));
    }
    full_ = Run(nullptr, *CreateCpuOps(2));
  }

  std::vector<std::vector<float>> Run(const Latents* latents, std::unique_ptr<Ops> ops) {
    auto harness = DecoderHarness::Create(*checkpoint_, latents, std::move(ops), Codec::kF32, 12);
    EXPECT_TRUE(harness.ok()) << harness.status();
    return (*harness)->RunSequence(tokens_, {{5, 0, 7}}, {70, 129}, 2);
  }

  // Largest distance of a logit from that of the full cache.
  float Distance(const TestLatents& options, std::unique_ptr<Ops> ops) {
    const auto rows = Run(MakeTestLatents(*checkpoint_, options).get(), std::move(ops));
    float largest = 0;
    for (size_t r = 0; r < rows.size(); ++r) {
      for (size_t i = 0; i < rows[r].size(); ++i) {
        const float distance = std::abs(rows[r][i] - full_[r][i]);
        if (!(distance <= largest)) largest = distance;
      }
    }
    return largest;
  }

  std::unique_ptr<Checkpoint> checkpoint_;
  std::vector<int32_t> tokens_;
  std::vector<std::vector<float>> full_;
};

TestLatents FullRank(int heads_per_group, bool means) {
  const int width = 16 * heads_per_group;
  return {.heads_per_group = heads_per_group,
          .k = {{width, Codec::kF32}},
          .v = {{width, Codec::kF32}},
          .means = means};
}

// But for key norms, which are 16-bit numbers.
TEST_P(FullRankLaw, LatentsIn32BitsEqualTheFullCache) {
  const float limit = checkpoint_->config().qk_norm ? kHalf : kExact;
  for (int heads_per_group : {1, 2}) {
    for (bool means : {false, true}) {
      EXPECT_LT(Distance(FullRank(heads_per_group, means), *CreateCpuOps(2)), limit)
          << heads_per_group << means;
    }
  }
}

// They hold 16-bit numbers.
TEST_P(FullRankLaw, SinksAndOwnPagesChangeRoundingAlone) {
  for (bool means : {false, true}) {
    TestLatents options = FullRank(2, means);
    options.sinks = 4;
    EXPECT_LT(Distance(options, *CreateCpuOps(2)), kHalf) << means;
    options.own_page = true;
    EXPECT_LT(Distance(options, *CreateCpuOps(2)), kHalf) << means;
    EXPECT_LT(Distance(options, CreateReferenceOps()), kHalf) << means;
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, FullRankLaw,
    ::testing::Values(
        FullRankCase{"llama"}, FullRankCase{"qwen2", "qwen2"}, FullRankCase{"gpt2", "gpt2"},
        FullRankCase{"qwen3", "qwen3"}, FullRankCase{"bloom", "bloom"},
        FullRankCase{"qk_norm", "llama", [](ModelConfig& c) { c.qk_norm = true; }},
        FullRankCase{"alibi", "llama", [](ModelConfig& c) { c.position = PositionKind::kAlibi; }},
        FullRankCase{"alibi_bias", "qwen2",
                     [](ModelConfig& c) { c.position = PositionKind::kAlibi; }},
        FullRankCase{"window", "qwen2", [](ModelConfig& c) { c.sliding_window = 70; }},
        FullRankCase{"narrow_window", "gpt2", [](ModelConfig& c) { c.sliding_window = 3; }}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace latentd
