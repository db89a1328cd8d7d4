// The laws of the cache: what a token sees does not depend on how the work was cut. Bit for bit on
// every backend, for every layout.

#include <cmath>
#include <cstring>
#include <numeric>
#include <optional>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "engine/model/plain_latents.h"
#include "gtest/gtest.h"
#include "tests/testing/altered_checkpoint.h"
#include "tests/testing/decoder_harness.h"
#include "tests/testing/test_latents.h"
#include "tests/testing/tested_backend.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

using Rows = std::vector<std::vector<float>>;

constexpr int kLength = 150;    // tokens of the sequence under test: two full blocks and a part
constexpr int kNumBlocks = 12;  // of the pool

// A model and its cache.
struct CacheKind {
  std::string name;
  std::string family = "llama";
  void (*change)(ModelConfig&) = [](ModelConfig&) {};
  Codec full_codec = Codec::kF16;
  std::optional<TestLatents> latents = std::nullopt;
  int plain_bits = 0;
};

std::vector<int32_t> RandomTokens(int count, uint64_t seed, int vocab) {
  std::vector<int32_t> tokens(count);
  for (int i = 0; i < count; ++i) tokens[i] = static_cast<int32_t>(RandomBits(seed, i) % vocab);
  return tokens;
}

class DecoderLaws : public OpsTest, public ::testing::WithParamInterface<CacheKind> {
 protected:
  void SetUp() override {
    OpsTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    const CacheKind& kind = GetParam();
    auto base = Checkpoint::Open(WriteTinyModel({.family = kind.family, .head_dim = 32}));
    ASSERT_TRUE(base.ok()) << base.status();
    checkpoint_ = std::make_unique<AlteredCheckpoint>(*std::move(base), kind.change);
    if (kind.latents.has_value()) latents_ = MakeTestLatents(*checkpoint_, *kind.latents);
    if (kind.plain_bits > 0) latents_ = *MakePlainLatents(*checkpoint_, kind.plain_bits);
    tokens_ = RandomTokens(kLength, 1, checkpoint_->config().vocab_size);
    const std::unique_ptr<DecoderHarness> harness = NewHarness(1);
    if (harness == nullptr) GTEST_SKIP() << "the backend has no kernel for such a cache";
    whole_ = harness->RunSequence(tokens_, blocks_, {}, 2);
    for (const std::vector<float>& row : whole_) {
      for (float logit : row) ASSERT_TRUE(std::isfinite(logit));
    }
  }

  // Null when the backend may refuse the cache and does.
  std::unique_ptr<DecoderHarness> NewHarness(int threads) {
    auto harness = DecoderHarness::Create(*checkpoint_, latents_.get(), *CreateTestedOps(threads),
                                          GetParam().full_codec, kNumBlocks);
    if (absl::IsUnimplemented(harness.status()) && MayRefuseAttention()) return nullptr;
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
  const std::vector<int> cuts[] = {{1}, {63, 64, 65}, {2, 64, 128, 149}, {3, 100}};
  for (int seat = 0; seat < 4; ++seat) {
    ExpectSameBits(NewHarness(1)->RunSequence(tokens_, blocks_, cuts[seat], seat), "chunked");
  }
}

TEST_P(DecoderLaws, WholeEqualsTokenByToken) {
  std::vector<int> cuts(kLength - 1);
  std::iota(cuts.begin(), cuts.end(), 1);
  ExpectSameBits(NewHarness(1)->RunSequence(tokens_, blocks_, cuts, 3), "token by token");
}

TEST_P(DecoderLaws, ThreadsDoNotMatter) {
  for (int threads : {2, 3}) {
    ExpectSameBits(NewHarness(threads)->RunSequence(tokens_, blocks_, {70}, 1), "threads");
  }
}

TEST_P(DecoderLaws, PreemptedAndResumedEqualsWhole) {
  const std::unique_ptr<DecoderHarness> harness = NewHarness(1);
  harness->RunSequence(absl::MakeConstSpan(tokens_).first(100), {{1, 2}}, {33}, 1);
  // Another sequence takes the freed blocks and the seat over before this one starts again in
  // others that it had, and that were used.
  harness->RunSequence(RandomTokens(128, 2, checkpoint_->config().vocab_size), {{2, 5}}, {}, 1);
  harness->RunSequence(RandomTokens(90, 3, checkpoint_->config().vocab_size), {{9, 4}}, {}, 3);
  ExpectSameBits(harness->RunSequence(tokens_, {{2, 1, 9}}, {80}, 3), "resumed");
}

TEST_P(DecoderLaws, BatchedEqualsAlone) {
  const std::unique_ptr<DecoderHarness> harness = NewHarness(1);
  const int vocab = checkpoint_->config().vocab_size;
  const std::vector<int32_t> first = RandomTokens(70, 3, vocab), second = RandomTokens(1, 4, vocab);
  Rows rows;
  std::vector<int32_t> held = blocks_;
  for (const auto& [begin, end] : {std::pair(0, 3), std::pair(3, 64), std::pair(64, 65),
                                   std::pair(65, 140), std::pair(140, kLength)}) {
    harness->GiveBack(begin, &held);
    Batch batch{.max_blocks = 3};
    AppendRows(&batch, first, 0, 70, {{3, 8}}, 3);
    AppendRows(&batch, tokens_, begin, end, held, 0);
    AppendRows(&batch, second, 0, 1, {{11}}, 2);
    const Rows all = harness->Run(batch);
    rows.insert(rows.end(), all.begin() + 70, all.begin() + 70 + (end - begin));
  }
  ExpectSameBits(rows, "batched");
}

void NormsQueriesAndKeys(ModelConfig& config) { config.qk_norm = true; }
void Alibi(ModelConfig& config) { config.position = PositionKind::kAlibi; }
void NarrowWindow(ModelConfig& config) { config.sliding_window = 20; }
void WideWindow(ModelConfig& config) { config.sliding_window = 70; }
void AlibiAndWindow(ModelConfig& config) { Alibi(config), WideWindow(config); }

// Two KV heads of 32 dims share 64; 16 of K's are dropped.
TestLatents Mixed(int sinks, bool own_page, bool means) {
  return {.heads_per_group = 2,
          .k = {{16, Codec::kInt8}, {16, Codec::kInt4}, {16, Codec::kInt2}},
          .v = {{32, Codec::kInt4}, {16, Codec::kInt3}, {16, Codec::kInt2}},
          .sinks = sinks,
          .own_page = own_page,
          .means = means};
}

std::vector<CacheKind> Kinds() {
  std::vector<CacheKind> kinds;
  const auto add = [&](CacheKind kind) { kinds.push_back(std::move(kind)); };
  // What another path or a bias could change; Qwen2 differs from Llama by its biases alone.
  add({.name = "qwen2_full_f16", .family = "qwen2"});
  add({.name = "qwen2_plain_4", .family = "qwen2", .plain_bits = 4});
  add({.name = "qwen2_mixed", .family = "qwen2", .latents = Mixed(4, true, true)});
  for (const char* family : {"llama", "gpt2"}) {
    add({.name = absl::StrCat(family, "_full_f16"), .family = family});
    add({.name = absl::StrCat(family, "_full_f32"), .family = family, .full_codec = Codec::kF32});
    for (Codec codec : {Codec::kF32, Codec::kF16, Codec::kInt8, Codec::kInt4, Codec::kInt3,
                        Codec::kInt2, Codec::kMinMax4, Codec::kMinMax3, Codec::kMinMax2}) {
      const std::vector<Segment> segments = {{32, codec}};
      add({.name = absl::StrCat(family, "_latent_", Info(codec).name),
           .family = family,
           .latents = TestLatents{.heads_per_group = 2, .k = segments, .v = segments}});
    }
    for (int bits : {8, 4, 3, 2}) {
      add({.name = absl::StrCat(family, "_plain_", bits), .family = family, .plain_bits = bits});
    }
    for (int sinks : {0, 1, 4, 64}) {
      for (bool own_page : {false, true}) {
        for (bool means : {false, true}) {
          add({.name = absl::StrCat(family, "_mixed_", sinks, "_sinks", own_page ? "_own_page" : "",
                                    means ? "_means" : ""),
               .family = family,
               .latents = Mixed(sinks, own_page, means)});
        }
      }
    }
  }
  const struct {
    const char* family;
    void (*change)(ModelConfig&);
  } families[] = {
      {"mistral", WideWindow}, {"qwen3", [](ModelConfig&) {}}, {"bloom", [](ModelConfig&) {}}};
  for (const auto& [family, change] : families) {
    add({.name = absl::StrCat(family, "_full_f16"), .family = family, .change = change});
    add({.name = absl::StrCat(family, "_plain_4"),
         .family = family,
         .change = change,
         .plain_bits = 4});
    for (bool own_page : {false, true}) {
      add({.name = absl::StrCat(family, "_mixed", own_page ? "_own_page" : ""),
           .family = family,
           .change = change,
           .latents = Mixed(4, own_page, true)});
    }
  }
  const struct {
    const char* name;
    void (*change)(ModelConfig&);
  } changes[] = {{"qk_norm", NormsQueriesAndKeys},
                 {"alibi", Alibi},
                 {"narrow_window", NarrowWindow},
                 {"wide_window", WideWindow},
                 {"alibi_and_window", AlibiAndWindow}};
  for (const auto& [name, change] : changes) {
    add({.name = absl::StrCat(name, "_full"), .change = change});
    add({.name = absl::StrCat(name, "_mixed"), .change = change, .latents = Mixed(4, false, true)});
    add({.name = absl::StrCat(name, "_own_page"),
         .change = change,
         .latents = Mixed(4, true, true)});
    add({.name = absl::StrCat(name, "_plain_4"), .change = change, .plain_bits = 4});
  }
  return kinds;
}

INSTANTIATE_TEST_SUITE_P(Caches, DecoderLaws, ::testing::ValuesIn(Kinds()),
                         [](const auto& info) { return info.param.name; });

using DecoderLongLaws = OpsTest;

// Past the first split of positions.
TEST_F(DecoderLongLaws, WholeEqualsChunked) {
  constexpr int kLong = 1100;
  const auto checkpoint =
      Checkpoint::Open(WriteTinyModel({.layers = 1, .head_dim = 32, .max_context = 1200}));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  const std::unique_ptr<Latents> latents = MakeTestLatents(**checkpoint, Mixed(4, true, true));
  const std::vector<int32_t> tokens = RandomTokens(kLong, 1, (*checkpoint)->config().vocab_size);
  std::vector<int32_t> blocks(18);
  for (int b = 0; b < 18; ++b) blocks[b] = b * 7 % 18;
  const auto run = [&](const std::vector<int>& cuts, int seat) {
    auto harness =
        DecoderHarness::Create(**checkpoint, latents.get(), *CreateTestedOps(2), Codec::kF16, 18);
    EXPECT_TRUE(harness.ok()) << harness.status();
    return (*harness)->RunSequence(tokens, blocks, cuts, seat);
  };
  const Rows whole = run({}, 0);
  EXPECT_EQ(run({500, 1023, 1024, 1025, 1090}, 3), whole);
  EXPECT_EQ(run({64, 128, 1000}, 1), whole);
}

}  // namespace
}  // namespace latentd
