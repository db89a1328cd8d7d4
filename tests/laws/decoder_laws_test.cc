// The laws of the cache: what a token sees does not depend on how the work was cut. Bit for bit on
// the CPU.

#include <cmath>
#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "gtest/gtest.h"
#include "tests/testing/decoder_harness.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

using Rows = std::vector<std::vector<float>>;

constexpr int kLength = 150;    // tokens of the sequence under test: two full blocks and a part
constexpr int kNumBlocks = 12;  // of the pool

struct CacheKind {
  std::string name;
  std::string family;
  bool latent = false;
  Codec codec = Codec::kF16;
  int heads_per_group = 2;
  double rate = 0;
};

std::vector<int32_t> RandomTokens(int count, uint64_t seed, int vocab) {
  std::vector<int32_t> tokens(count);
  for (int i = 0; i < count; ++i) tokens[i] = static_cast<int32_t>(RandomBits(seed, i) % vocab);
  return tokens;
}

class DecoderLaws : public ::testing::TestWithParam<CacheKind> {
 protected:
  void SetUp() override {
    auto checkpoint = Checkpoint::Open(WriteTinyModel({.family = GetParam().family}));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = *std::move(checkpoint);
    if (GetParam().latent) {
      auto latents = MakeLatents(
          *checkpoint_,
          {.rate = GetParam().rate, .bits = 16, .heads_per_group = GetParam().heads_per_group},
          GetParam().codec);
      ASSERT_TRUE(latents.ok()) << latents.status();
      latents_ = *std::move(latents);
    }
    tokens_ = RandomTokens(kLength, 1, checkpoint_->config().vocab_size);
    whole_ = NewHarness(1)->RunSequence(tokens_, blocks_, {});
    for (const std::vector<float>& row : whole_) {
      for (float logit : row) ASSERT_TRUE(std::isfinite(logit));
    }
  }

  std::unique_ptr<DecoderHarness> NewHarness(int threads) {
    auto harness = DecoderHarness::Create(*checkpoint_, latents_.get(), *CreateCpuOps(threads),
                                          GetParam().codec, kNumBlocks);
    EXPECT_TRUE(harness.ok()) << harness.status();
    return *std::move(harness);
  }

  void ExpectSameBits(const Rows& rows, const std::string& what) {
    ASSERT_EQ(rows.size(), whole_.size()) << what;
    for (size_t r = 0; r < rows.size(); ++r) {
      ASSERT_EQ(std::memcmp(rows[r].data(), whole_[r].data(), rows[r].size() * sizeof(float)), 0)
          << what << ", row " << r;
    }
  }

  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Latents> latents_;
  std::vector<int32_t> tokens_;
  const std::vector<int32_t> blocks_ = {5, 0, 7};
  Rows whole_;
};

TEST_P(DecoderLaws, WholeEqualsChunked) {
  for (const std::vector<int>& cuts :
       {std::vector<int>{1}, {63, 64, 65}, {7, 64, 128, 149}, {100}}) {
    ExpectSameBits(NewHarness(1)->RunSequence(tokens_, blocks_, cuts), "chunked");
  }
}

TEST_P(DecoderLaws, WholeEqualsTokenByToken) {
  std::vector<int> cuts(kLength - 1);
  std::iota(cuts.begin(), cuts.end(), 1);
  ExpectSameBits(NewHarness(1)->RunSequence(tokens_, blocks_, cuts), "token by token");
}

TEST_P(DecoderLaws, ThreadsDoNotMatter) {
  for (int threads : {2, 3}) {
    ExpectSameBits(NewHarness(threads)->RunSequence(tokens_, blocks_, {70}), "threads");
  }
}

TEST_P(DecoderLaws, PreemptedAndResumedEqualsWhole) {
  const std::unique_ptr<DecoderHarness> harness = NewHarness(1);
  harness->RunSequence(absl::MakeConstSpan(tokens_).first(100), {{1, 2}}, {33});
  // Another sequence takes the freed blocks over before this one starts again elsewhere.
  harness->RunSequence(RandomTokens(128, 2, checkpoint_->config().vocab_size), {{2, 5}}, {});
  ExpectSameBits(harness->RunSequence(tokens_, {{2, 1, 9}}, {80}), "resumed");
}

TEST_P(DecoderLaws, BatchedEqualsAlone) {
  const std::unique_ptr<DecoderHarness> harness = NewHarness(1);
  const int vocab = checkpoint_->config().vocab_size;
  const std::vector<int32_t> first = RandomTokens(70, 3, vocab), second = RandomTokens(1, 4, vocab);
  Rows rows;
  for (const auto& [begin, end] : {std::pair(0, 64), std::pair(64, 65), std::pair(65, kLength)}) {
    Batch batch{.max_blocks = 3};
    AppendRows(&batch, first, 0, 70, {{3, 8}}, 1);
    AppendRows(&batch, tokens_, begin, end, blocks_, 0);
    AppendRows(&batch, second, 0, 1, {{11}}, 2);
    const Rows all = harness->Run(batch);
    rows.insert(rows.end(), all.begin() + 70, all.begin() + 70 + (end - begin));
  }
  ExpectSameBits(rows, "batched");
}

std::vector<CacheKind> Kinds() {
  std::vector<CacheKind> kinds;
  for (const char* family : {"llama", "qwen2", "gpt2"}) {
    kinds.push_back({absl::StrCat(family, "_full_f16"), family});
    kinds.push_back({absl::StrCat(family, "_full_f32"), family, false, Codec::kF32});
    for (Codec codec : {Codec::kF32, Codec::kF16, Codec::kInt8, Codec::kInt4, Codec::kInt3,
                        Codec::kInt2, Codec::kMinMax4, Codec::kMinMax3, Codec::kMinMax2}) {
      kinds.push_back(
          {absl::StrCat(family, "_latent_", Info(codec).name), family, true, codec, 2, 0.5});
    }
    kinds.push_back({absl::StrCat(family, "_one_head_int4"), family, true, Codec::kInt4, 1, 0});
  }
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Caches, DecoderLaws, ::testing::ValuesIn(Kinds()),
                         [](const auto& info) { return info.param.name; });

class FullRank : public ::testing::TestWithParam<std::string> {};

TEST_P(FullRank, LatentsIn32BitsEqualTheFullCache) {
  const auto checkpoint = Checkpoint::Open(WriteTinyModel({.family = GetParam()}));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const std::vector<int32_t> tokens = RandomTokens(kLength, 1, (*checkpoint)->config().vocab_size),
                             blocks = {5, 0, 7};
  auto full =
      DecoderHarness::Create(**checkpoint, nullptr, *CreateCpuOps(2), Codec::kF32, kNumBlocks);
  ASSERT_TRUE(full.ok()) << full.status();
  const Rows expected = (*full)->RunSequence(tokens, blocks, {});
  for (int heads_per_group : {1, 2}) {
    for (bool hadamard : {false, true}) {
      const auto latents = MakeLatents(
          **checkpoint,
          {.rate = 0, .bits = 32, .heads_per_group = heads_per_group, .hadamard = hadamard});
      ASSERT_TRUE(latents.ok()) << latents.status();
      auto harness = DecoderHarness::Create(**checkpoint, latents->get(), *CreateCpuOps(2),
                                            Codec::kF16, kNumBlocks);
      ASSERT_TRUE(harness.ok()) << harness.status();
      const Rows rows = (*harness)->RunSequence(tokens, blocks, {});
      for (size_t r = 0; r < rows.size(); ++r) {
        for (size_t i = 0; i < rows[r].size(); ++i)
          ASSERT_NEAR(rows[r][i], expected[r][i], 1e-4) << r << " " << i;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, FullRank, ::testing::Values("llama", "qwen2", "gpt2"));

}  // namespace
}  // namespace latentd
