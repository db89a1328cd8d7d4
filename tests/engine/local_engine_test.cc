#include "engine/local_engine.h"

#include <cmath>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/altered_checkpoint.h"
#include "tests/testing/decoder_harness.h"
#include "tests/testing/test_latents.h"
#include "tests/testing/tested_backend.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

class LocalEngineTest : public OpsTest {
 protected:
  void SetUp() override {
    OpsTest::SetUp();
    if (IsSkipped()) return;
    auto checkpoint = Checkpoint::Open(GoldenModel("llama"));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = *std::move(checkpoint);
  }
  absl::StatusOr<std::unique_ptr<Engine>> Create(const EngineOptions& options,
                                                 const Latents* latents = nullptr) {
    return CreateLocalEngine(*checkpoint_, latents, NewOps(), options);
  }
  std::unique_ptr<Checkpoint> checkpoint_;
};

// 2 layers x 2 planes x 2 heads x 16 dims x 2 bytes.
constexpr double kFullBytes = 2 * 2 * 2 * 16 * 2;

TEST_F(LocalEngineTest, CountsBytesPerTokenAsTheLayoutStoresThem) {
  const auto full = Create({.num_blocks = 3});
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_EQ((*full)->info().bytes_per_token, kFullBytes);
  EXPECT_EQ((*full)->info().full_bytes_per_token, kFullBytes);
  EXPECT_EQ((*full)->info().num_blocks, 3);
  EXPECT_EQ((*full)->info().max_context, 3 * 64);

  EXPECT_EQ((*full)->info().bytes_per_sequence, 0);

  const auto latents = MakeTestLatents(*checkpoint_, {.heads_per_group = 2,
                                                      .k = {{16, Codec::kMinMax4}},
                                                      .v = {{16, Codec::kInt8}, {16, Codec::kInt2}},
                                                      .sinks = 4,
                                                      .own_page = true});
  const auto compressed = Create({.num_blocks = 3, .num_sequences = 5}, latents.get());
  ASSERT_TRUE(compressed.ok()) << compressed.status();
  const EngineInfo& info = (*compressed)->info();
  // 2 layers x (16 dims x 4 bits + scale and zero), x (16 dims x 8 bits + 16 x 2 bits + 2 scales).
  EXPECT_EQ(info.k_bytes_per_token, 2 * (8 + 4));
  EXPECT_EQ(info.v_bytes_per_token, 2 * (16 + 4 + 2 * 2));
  EXPECT_EQ(info.bytes_per_token, info.k_bytes_per_token + info.v_bytes_per_token);
  EXPECT_EQ(info.full_bytes_per_token, kFullBytes);
  // 2 layers x (4 sinks of K and V, 32 dims in 16 bits, and 64 tokens of 16 + 32 dims in 16 bits).
  EXPECT_EQ(info.bytes_per_sequence, 2 * (4 * 2 * 32 * 2 + 64 * (16 + 32) * 2));
  EXPECT_EQ(info.num_sequences, 5);
}

// What the scheduler and the figures must know of a window and of norms of keys, one 16-bit number
// per head, which count as K's.
TEST_F(LocalEngineTest, TellsOfTheWindowAndCountsKeyNorms) {
  checkpoint_ = std::make_unique<AlteredCheckpoint>(std::move(checkpoint_), [](ModelConfig& c) {
    c.sliding_window = 70;
    c.qk_norm = true;
  });
  const std::vector<Segment> segments = {{16, Codec::kInt8}};
  const auto latents =
      MakeTestLatents(*checkpoint_, {.heads_per_group = 2, .k = segments, .v = segments});
  const auto engine = Create({.num_blocks = 3}, latents.get());
  ASSERT_TRUE(engine.ok()) << engine.status();
  const EngineInfo& info = (*engine)->info();
  EXPECT_EQ(info.sliding_window, 70);
  // 2 layers x (16 dims x 8 bits, a scale, and for K 2 norms).
  EXPECT_EQ(info.k_bytes_per_token, 2 * (16 + 2 + 2 * 2));
  EXPECT_EQ(info.v_bytes_per_token, 2 * (16 + 2));
  EXPECT_EQ(info.bytes_per_token, info.k_bytes_per_token + info.v_bytes_per_token);
}

TEST_F(LocalEngineTest, CacheBytesPayForSeatsFirst) {
  const auto latents = MakeTestLatents(*checkpoint_, {.heads_per_group = 2,
                                                      .k = {{32, Codec::kInt4}},
                                                      .v = {{32, Codec::kInt4}},
                                                      .sinks = 4,
                                                      .own_page = true});
  const int64_t block = 2 * 2 * 64 * (16 + 2), seat = 2 * (4 * 2 * 32 * 2 + 64 * 64 * 2);
  const auto engine =
      Create({.cache_bytes = 10 * seat + 4 * block - 1, .num_sequences = 10}, latents.get());
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ((*engine)->info().num_blocks, 3);
  const absl::Status status =
      Create({.cache_bytes = 10 * seat, .num_sequences = 10}, latents.get()).status();
  EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("--cache-bytes is ", 10 * seat)));
  EXPECT_THAT(status.message(), HasSubstr(absl::StrCat("takes ", 10 * seat + block)));
  EXPECT_THAT(status.message(), HasSubstr("10 sequences at once"));
}

TEST_F(LocalEngineTest, ACacheFractionIsOfADevicesOwnMemory) {
  std::unique_ptr<Ops> ops = NewOps();
  const auto memory = ops->device().Memory();
  ASSERT_TRUE(memory.ok()) << memory.status();
  if (!memory->has_value()) {
    EXPECT_THAT(Create({.cache_fraction = 0.5}).status().message(), HasSubstr("use --cache-bytes"));
    return;
  }
  ops.reset();
  const auto used = static_cast<double>((*memory)->used),
             total = static_cast<double>((*memory)->total);
  const double fraction = used / total + 0.02;
  const auto engine = Create({.cache_fraction = fraction, .num_sequences = 4});
  ASSERT_TRUE(engine.ok()) << engine.status();
  const EngineInfo& info = (*engine)->info();
  EXPECT_EQ(info.device_bytes, (*memory)->total);
  const auto share = static_cast<double>(info.device_bytes_used + info.pool_bytes) / total;
  EXPECT_NEAR(share, fraction, 1e-5);
  EXPECT_GT(info.pool_bytes, 0.001 * total);
}

TEST_F(LocalEngineTest, FillsTheCacheBytesWithBlocks) {
  const auto engine = Create({.cache_bytes = static_cast<int64_t>(kFullBytes * 64 * 4.9)});
  ASSERT_TRUE(engine.ok());
  EXPECT_EQ((*engine)->info().num_blocks, 4);
  EXPECT_THAT(Create({.cache_bytes = 100}).status().message(),
              HasSubstr("--cache-bytes is 100, the smallest cache takes 16384"));
  EXPECT_THAT(Create({.max_context = 1000}).status().message(),
              HasSubstr("--max-context is 1000, the model was made for 256"));
}

TEST_F(LocalEngineTest, ScoresAreTheLogProbabilitiesOfSampling) {
  const auto engine = Create({.num_blocks = 2});
  ASSERT_TRUE(engine.ok());
  const std::vector<int32_t> tokens = {1, 5, 9, 20};
  Batch batch{.max_blocks = 1};
  const int row = AppendRows(&batch, tokens, 0, 4, {{1}}, 0);
  batch.samples.push_back(
      {.row = row, .params = {.temperature = 0, .num_logprobs = 3}, .position = 4});
  auto output = (*engine)->Step(batch);
  ASSERT_TRUE(output.ok());
  const SampleResult drawn = output->samples[0];
  ASSERT_TRUE(drawn.ok);
  ASSERT_EQ(drawn.top.size(), 3u);
  EXPECT_EQ(drawn.top[0].token_id, drawn.token_id);

  Batch again{.max_blocks = 1};
  AppendRows(&again, tokens, 0, 4, {{0}}, 0);
  double sum = 0;
  for (int32_t id = 0; id < 128; ++id) again.scores.push_back({.row = 3, .token_id = id});
  output = (*engine)->Step(again);
  ASSERT_TRUE(output.ok());
  for (float logprob : output->logprobs) sum += std::exp(logprob);
  EXPECT_NEAR(sum, 1, 1e-5);
  EXPECT_NEAR(output->logprobs[drawn.token_id], drawn.logprob, 1e-5);
  EXPECT_NEAR(output->logprobs[drawn.top[2].token_id], drawn.top[2].logprob, 1e-5);
}

TEST_F(LocalEngineTest, ABatchThatCannotBeComputedEndsTheEngine) {
  const auto engine = Create({.num_blocks = 2});
  ASSERT_TRUE(engine.ok());
  Batch batch{.max_blocks = 1};
  AppendRows(&batch, std::vector<int32_t>{128}, 0, 1, {{0}}, 0);
  EXPECT_THAT((*engine)->Step(batch).status().message(),
              HasSubstr("token id 128, the vocabulary has 128"));
  Batch good{.max_blocks = 1};
  AppendRows(&good, std::vector<int32_t>{1}, 0, 1, {{0}}, 0);
  EXPECT_THAT((*engine)->Step(good).status().message(), HasSubstr("token id 128"));

  const auto other = Create({.num_blocks = 2});
  ASSERT_TRUE(other.ok());
  EXPECT_TRUE((*other)->Step(good).ok());
  good.scores.push_back({.row = 0, .token_id = -1});
  EXPECT_THAT((*other)->Step(good).status().message(), HasSubstr("token id -1"));
}

TEST_F(LocalEngineTest, ASequenceLongerThanTheContextEndsTheEngine) {
  const auto engine = Create({.num_blocks = 2, .max_context = 100});
  ASSERT_TRUE(engine.ok());
  const std::vector<int32_t> tokens(101, 1);
  Batch batch{.max_blocks = 2};
  AppendRows(&batch, tokens, 0, 101, {{1, 0}}, 0);
  EXPECT_THAT((*engine)->Step(batch).status().message(),
              HasSubstr("sequence of 101 tokens, the context is 100"));
}

// What lies outside the pool is never written.
TEST_F(LocalEngineTest, ABatchOutsideTheCacheEndsTheEngine) {
  const std::vector<int32_t> token = {1};
  const auto error = [&](int32_t block, int32_t seat) {
    const auto engine = Create({.num_blocks = 2, .num_sequences = 3});
    Batch batch{.max_blocks = 1};
    AppendRows(&batch, token, 0, 1, {{block}}, seat);
    return std::string((*engine)->Step(batch).status().message());
  };
  EXPECT_EQ(error(1, 2), "");
  EXPECT_THAT(error(2, 0), HasSubstr("slot 128, the cache has 128"));
  EXPECT_THAT(error(-1, 0), HasSubstr("slot -64"));
  EXPECT_THAT(error(0, 3), HasSubstr("seat 3, the cache has 3"));
  EXPECT_THAT(error(0, -1), HasSubstr("seat -1"));
}

}  // namespace
}  // namespace latentd
