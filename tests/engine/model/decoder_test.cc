#include "engine/model/decoder.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <sstream>
#include <string>
#include <utility>

#include "base/random.h"
#include "engine/batch.h"
#include "gtest/gtest.h"
#include "tests/testing/decoder_harness.h"
#include "tests/testing/test_latents.h"
#include "tests/testing/tested_backend.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

using Calls = std::vector<std::string>;

// Another Ops that calls all ops of every step, and notes those that a backend may replay.
class WatchedOps final : public Ops {
 public:
  explicit WatchedOps(std::unique_ptr<Ops> ops) : ops_(std::move(ops)) {}

  // What Replay was given in the latest step: the ops with all arguments but the spans' values and
  // addresses. None if it was not called.
  const std::optional<Calls>& replayed() const { return replayed_; }

  std::string_view name() const override { return ops_->name(); }
  Device& device() override { return ops_->device(); }
  absl::StatusOr<std::unique_ptr<Weight>> PrepareWeight(const TensorView& view) override {
    return ops_->PrepareWeight(view);
  }
  absl::StatusOr<std::unique_ptr<AttentionPlan>> PrepareAttention(
      const AttentionSpec& spec) override {
    return ops_->PrepareAttention(spec);
  }

  void BeginStep(const StepInputs& step) override {
    replayed_.reset();
    ops_->BeginStep(step);
  }
  void Replay(const uint8_t*, absl::FunctionRef<void()> ops) override {
    replayed_.emplace();
    watching_ = true;
    ops();
    watching_ = false;
  }
  void Embed(const EmbedParams& p) override {
    Note("embed", p.token_ids.size(), p.positions.size(), p.table.data, p.position_table, p.out);
    ops_->Embed(p);
  }
  void Norm(const NormParams& p) override {
    NoteNorm(p);
    ops_->Norm(p);
  }
  void Matmul(const MatmulParams& p) override {
    Note("matmul", p.in, p.rows, p.k);
    if (p.norm != nullptr) NoteNorm(*p.norm);
    if (p.activation != nullptr) NoteActivation(*p.activation);
    for (const Product& product : p.products) {
      Note("product", product.weight, product.bias, product.out, product.out_stride,
           product.accumulate);
    }
    ops_->Matmul(p);
  }
  void Rope(const RopeParams& p) override {
    Note("rope", p.table, p.positions.size(), p.heads, p.head_dim, p.x);
    ops_->Rope(p);
  }
  void Activation(const ActivationParams& p) override {
    NoteActivation(p);
    ops_->Activation(p);
  }
  void Gather(const GatherParams& p) override {
    Note("gather", p.in, p.dims, p.rows.size(), p.out);
    ops_->Gather(p);
  }
  void AppendCache(const AppendCacheParams& p) override {
    NoteCache(p.cache);
    Note("append", p.plan, p.k, p.k_stride, p.v, p.v_stride, p.sink_k, p.sink_v);
    ops_->AppendCache(p);
  }
  void Attention(const AttentionParams& p) override {
    NoteCache(p.cache);
    Note("attention", p.plan, p.q, p.out);
    ops_->Attention(p);
  }
  void LogProbability(const LogProbabilityParams& p) override { ops_->LogProbability(p); }
  void Sample(const SampleParams& p) override { ops_->Sample(p); }

 private:
  template <typename... Arguments>
  void Note(const char* op, const Arguments&... arguments) {
    if (!watching_) return;
    std::ostringstream call;
    call << op;
    ((call << ' ' << arguments), ...);
    replayed_->push_back(call.str());
  }
  void NoteNorm(const NormParams& p) {
    Note("norm", static_cast<int>(p.kind), p.rows, p.dims, p.in, p.weight, p.bias, p.out);
  }
  void NoteActivation(const ActivationParams& p) {
    Note("activation", static_cast<int>(p.kind), p.rows, p.dims, p.gate, p.up, p.out);
  }
  void NoteCache(const CacheView& cache) {
    Note("cache", static_cast<const void*>(cache.layer), cache.block_bytes, cache.cu_q_lens.size(),
         cache.kv_lens.size(), cache.slots.size(), static_cast<const void*>(cache.seats),
         cache.seat_of.size(), static_cast<const void*>(cache.step_pages),
         cache.first_step_page.size());
  }

  const std::unique_ptr<Ops> ops_;
  bool watching_ = false;
  std::optional<Calls> replayed_;
};

// A model and its cache.
struct Subject {
  std::string name;
  std::string family;
  std::optional<TestLatents> latents = std::nullopt;
  int head_dim = 32;
};

// Sequences that come and go.
class DecoderReplay : public OpsTest, public ::testing::WithParamInterface<Subject> {
 protected:
  static constexpr int kSequences = 4, kContext = 1200;
  static constexpr int kBlocksEach = (kContext + kBlockTokens - 1) / kBlockTokens;

  void SetUp() override {
    OpsTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    auto checkpoint = Checkpoint::Open(WriteTinyModel(
        {.family = GetParam().family, .head_dim = GetParam().head_dim, .max_context = kContext}));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    checkpoint_ = *std::move(checkpoint);
    if (GetParam().latents) latents_ = MakeTestLatents(*checkpoint_, *GetParam().latents);
    const int vocab = checkpoint_->config().vocab_size;
    for (int s = 0; s < kSequences; ++s) {
      for (int i = 0; i < kContext; ++i) {
        tokens_[s].push_back(static_cast<int32_t>(RandomBits(s, i) % vocab));
      }
      for (int b = 0; b < kBlocksEach; ++b) blocks_[s].push_back(b * kSequences + s);
    }
  }

  std::unique_ptr<DecoderHarness> NewHarness(std::unique_ptr<Ops> ops) {
    auto harness = DecoderHarness::Create(*checkpoint_, latents_.get(), std::move(ops), Codec::kF16,
                                          kSequences * kBlocksEach);
    EXPECT_TRUE(harness.ok()) << harness.status();
    return *std::move(harness);
  }

  // A step over the next `count` tokens of each of the sequences named, the first of all after
  // Restart.
  struct Rows {
    int sequence, count;
  };
  std::vector<std::vector<float>> Step(DecoderHarness& harness, const std::vector<Rows>& all) {
    Batch batch;
    for (const auto& [s, count] : all) {
      batch.max_blocks = std::max(batch.max_blocks, BlocksFor(computed_[s] + count));
    }
    for (const auto& [s, count] : all) {
      const int begin = std::exchange(computed_[s], computed_[s] + count);
      const auto blocks = absl::MakeConstSpan(blocks_[s]).first(BlocksFor(computed_[s]));
      AppendRows(&batch, tokens_[s], begin, computed_[s], blocks, s);
    }
    return harness.Run(batch);
  }
  void Restart(int sequence) { computed_[sequence] = 0; }

  // Runs `check` on the logits of each step of a history in which activations, block tables and
  // attention's splits grow, sequences join, leave, change places and take another's seat.
  template <typename Check>
  void RunHistory(DecoderHarness& harness, Check check) {
    const auto step = [&](const std::vector<Rows>& rows) { check(rows, Step(harness, rows)); };
    const auto decode = [&](const std::vector<int>& sequences, int steps) {
      std::vector<Rows> rows;
      for (const int s : sequences) rows.push_back({s, 1});
      for (int i = 0; i < steps; ++i) step(rows);
    };
    for (int s = 0; s < kSequences; ++s) Restart(s);
    step({{0, 60}});
    decode({0}, 8);
    step({{0, 1}, {1, 5}});
    decode({0, 1}, 5);
    decode({1, 0}, 3);
    step({{2, 300}});
    decode({2, 0, 1}, 4);
    decode({0, 2}, 4);
    Restart(1);
    step({{1, 7}, {0, 1}});
    decode({0, 2, 1}, 4);
    step({{3, 1019}});
    decode({3}, 10);
    decode({3, 0}, 4);
    decode({0, 1, 2, 3}, 4);
    decode({0}, 4);
  }

  static int64_t BlocksFor(int tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<Latents> latents_;
  std::vector<int32_t> tokens_[kSequences], blocks_[kSequences];
  int computed_[kSequences] = {};
};

TEST_P(DecoderReplay, GivesTheBitsOfOpsThatAreCalled) {
  for (const auto& create : {CreateTestedOps, CreateFastestOps}) {
    std::vector<std::vector<std::vector<float>>> called;
    const auto watched = NewHarness(std::make_unique<WatchedOps>(*create(1)));
    RunHistory(*watched, [&](const auto&, const auto& logits) { called.push_back(logits); });
    size_t step = 0;
    RunHistory(*NewHarness(*create(1)), [&](const auto&, const auto& logits) {
      for (size_t row = 0; row < logits.size(); ++row) {
        EXPECT_EQ(std::memcmp(logits[row].data(), called[step][row].data(),
                              logits[row].size() * sizeof(float)),
                  0)
            << "step " << step << ", row " << row;
      }
      ++step;
    });
  }
}

// What Decoder promises to Ops::Replay. Memory is allocated in the first history alone.
TEST_P(DecoderReplay, StepsOfAsManySequencesCallTheSameOps) {
  auto ops = std::make_unique<WatchedOps>(NewOps());
  const WatchedOps& watched = *ops;
  const auto harness = NewHarness(std::move(ops));
  RunHistory(*harness, [](const auto&, const auto&) {});
  std::map<size_t, Calls> calls;
  RunHistory(*harness, [&](const auto& rows, const auto&) {
    if (!watched.replayed().has_value()) return;
    EXPECT_EQ(calls.try_emplace(rows.size(), *watched.replayed()).first->second,
              *watched.replayed());
  });
  EXPECT_EQ(calls.size(), 4u);
}

TEST_P(DecoderReplay, IsOfStepsWithOneRowASequenceAndNoSinks) {
  auto ops = std::make_unique<WatchedOps>(NewOps());
  const WatchedOps& watched = *ops;
  const auto harness = NewHarness(std::move(ops));
  const int sinks = GetParam().latents ? GetParam().latents->sinks : 0;
  for (int position = 0; position < sinks + 2; ++position) {
    Step(*harness, {{0, 1}});
    EXPECT_EQ(watched.replayed().has_value(), position >= sinks) << position;
  }
  Step(*harness, {{1, 70}});
  EXPECT_FALSE(watched.replayed().has_value());
  Step(*harness, {{0, 1}, {1, 2}});
  EXPECT_FALSE(watched.replayed().has_value());
  Step(*harness, {{1, 1}, {0, 1}});
  EXPECT_TRUE(watched.replayed().has_value());
}

TestLatents Mixed(int sinks, bool own_page) {
  return {.heads_per_group = 2,
          .k = {{16, Codec::kInt8}, {16, Codec::kInt4}, {16, Codec::kInt2}},
          .v = {{32, Codec::kInt4}, {16, Codec::kInt3}, {16, Codec::kInt2}},
          .sinks = sinks,
          .own_page = own_page,
          .means = true};
}

const std::vector<Segment> kFourBits = {{32, Codec::kInt4}};

// What kernels for decode steps rebuild keys of, with heads of 64 dims.
TestLatents FewBits(int sinks, bool own_page) {
  return {.heads_per_group = 2,
          .k = {{32, Codec::kInt4}, {16, Codec::kInt3}, {48, Codec::kInt2}},
          .v = {{64, Codec::kInt4}, {32, Codec::kInt2}},
          .sinks = sinks,
          .own_page = own_page};
}

INSTANTIATE_TEST_SUITE_P(
    Caches, DecoderReplay,
    ::testing::Values(Subject{"llama_full", "llama"},
                      Subject{"llama_four_bits", "llama",
                              TestLatents{.heads_per_group = 2, .k = kFourBits, .v = kFourBits}},
                      Subject{"llama_mixed", "llama", Mixed(4, true)},
                      Subject{"llama_64_few_bits", "llama", FewBits(0, false), 64},
                      Subject{"qwen3_64_few_bits", "qwen3", FewBits(4, true), 64},
                      Subject{"qwen2_64_mixed", "qwen2", Mixed(4, true), 64},
                      Subject{"qwen3_mixed", "qwen3", Mixed(0, true)}, Subject{"gpt2_full", "gpt2"},
                      Subject{"gpt2_mixed", "gpt2", Mixed(4, false)},
                      Subject{"bloom_mixed", "bloom", Mixed(1, true)}),
    [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace latentd
