#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "tests/kernels/ops/attention_run.h"
#include "tests/testing/tested_backend.h"

namespace latentd {
namespace {

// ---- The law: a row's bits follow from its query and its sequence's cache alone ----

std::vector<AttentionShape> LawShapes() {
  return {
      {.k = One(32, Codec::kF16), .v = One(32, Codec::kF16)},
      {.num_heads = 6, .k = One(32, Codec::kInt4), .v = One(32, Codec::kInt3)},
      {.path = AttentionPath::kReconstruct,
       .k_latent_heads = 1,
       .k = {{.dims = 32, .codec = Codec::kInt8}, {.dims = 16, .codec = Codec::kInt2}},
       .v = One(32, Codec::kInt4),
       .biases = true,
       .k_norm = true},
      {.path = AttentionPath::kReconstruct, .k = One(32, Codec::kF16), .v = One(16, Codec::kF16)},
      {.path = AttentionPath::kAbsorbed, .k = One(32, Codec::kInt4), .v = One(32, Codec::kF32)},
      {.num_heads = 6,
       .k = One(32, Codec::kF16),
       .v = One(32, Codec::kF16),
       .window = 1050,
       .alibi = true},
      {.path = AttentionPath::kReconstruct,
       .num_heads = 10,
       .k_latent_heads = 1,
       .v_latent_heads = 1,
       .k = {{.dims = 32, .codec = Codec::kInt4}, {.dims = 48, .codec = Codec::kInt2}},
       .v = {{.dims = 64, .codec = Codec::kInt4}, {.dims = 16, .codec = Codec::kInt2}},
       .biases = true,
       .sinks = 4,
       .own_page = true},
      {.path = AttentionPath::kAbsorbed,
       .num_heads = 10,
       .k_latent_heads = 1,
       .v_latent_heads = 1,
       .k = {{.dims = 32, .codec = Codec::kInt4}, {.dims = 16, .codec = Codec::kInt8}},
       .v = {{.dims = 32, .codec = Codec::kInt2}, {.dims = 16, .codec = Codec::kMinMax3}},
       .sinks = 2,
       .own_page = true},
      {.path = AttentionPath::kAbsorbed,
       .k = {{.dims = 32, .codec = Codec::kInt8}, {.dims = 16, .codec = Codec::kMinMax3}},
       .v = One(32, Codec::kMinMax4),
       .sinks = 3,
       .own_page = true,
       .window = 170,
       .alibi = true},
  };
}

// Appends and attends [0, kv_len) in chunks, on a fresh cache. So early chunks run while later
// tokens are poison.
std::vector<float> RunChunked(AttentionRun& run, const AttentionCase& c,
                              const AttentionInputs& inputs, int32_t kv_len, int32_t chunk) {
  PagedCache cache(c.spec().cache, {kv_len});
  std::vector<float> all;
  for (int32_t from = 0; from < kv_len; from += chunk) {
    const PagedStep step = cache.Step({from}, {std::min(from + chunk, kv_len)});
    run.AppendReference(inputs, cache, step);
    const std::vector<float> out = run.Attend(inputs, cache, step);
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

using AttentionLawTest = OpsTest;

TEST_F(AttentionLawTest, ChunksAndThreadsDoNotChangeBits) {
  constexpr int32_t kTokens = 1200;
  for (const AttentionShape& shape : LawShapes()) {
    const AttentionCase c(shape);
    const AttentionInputs inputs(c, kTokens);
    AttentionRun one(c, 1);
    if (one.refused()) continue;
    const std::vector<float> whole = RunChunked(one, c, inputs, kTokens, kTokens);
    for (const float value : whole) ASSERT_TRUE(std::isfinite(value));
    for (const int threads : ThreadCounts()) {
      AttentionRun run(c, threads);
      for (const int32_t chunk : {kTokens, 500, 67}) {
        SCOPED_TRACE(testing::Message() << threads << " threads, chunks of " << chunk);
        ExpectSameBits(whole, RunChunked(run, c, inputs, kTokens, chunk));
      }
    }
    ExpectSameBits(whole, RunChunked(one, c, inputs, kTokens, 1));
  }
}

TEST_F(AttentionLawTest, TheBatchDoesNotChangeBits) {
  const std::vector<int32_t> kv_lens = {1100, 3, 64, 200};
  for (const AttentionShape& shape : LawShapes()) {
    const AttentionCase c(shape);
    PagedCache cache(c.spec().cache, kv_lens);
    const AttentionInputs inputs(c, cache.num_tokens());
    AttentionRun run(c, 2);
    if (run.refused()) continue;
    run.AppendReference(inputs, cache, cache.StepBeforeLast(2));
    const PagedStep last = cache.LastStep(2);
    run.AppendReference(inputs, cache, last);
    const std::vector<float> batched = run.Attend(inputs, cache, last);
    std::vector<float> alone;
    for (size_t s = 0; s < kv_lens.size(); ++s) {
      std::vector<int32_t> from = kv_lens;
      from[s] -= 2;
      const std::vector<float> out = run.Attend(inputs, cache, cache.Step(from, kv_lens));
      alone.insert(alone.end(), out.begin(), out.end());
    }
    ExpectSameBits(batched, alone);
  }
}

// Rows [begin, end) of all.
std::vector<float> Rows(const AttentionCase& c, const std::vector<float>& all, int64_t begin,
                        int64_t end) {
  return {all.begin() + begin * c.q_width(), all.begin() + end * c.q_width()};
}

void BreakLatents(const AttentionCase& c, int64_t token, AttentionInputs& inputs) {
  for (int i = 0; i < c.k_width(); ++i) inputs.k[token * c.k_width() + i] = NAN;
  for (int i = 0; i < c.v_width(); ++i) inputs.v[token * c.v_width() + i] = INFINITY;
}

// A token that went wrong is seen by those after it and by nobody else.
TEST_F(AttentionLawTest, LaterTokensDoNotLeak) {
  constexpr int32_t kTokens = 150, kBroken = 101;  // a pass of the kernels has rows on both sides
  for (const AttentionShape& shape : LawShapes()) {
    const AttentionCase c(shape);
    AttentionInputs inputs(c, kTokens);
    AttentionRun run(c, 1);
    if (run.refused()) continue;
    const std::vector<float> sound = RunChunked(run, c, inputs, kTokens, kTokens);
    BreakLatents(c, kBroken, inputs);
    const std::vector<float> broken = RunChunked(run, c, inputs, kTokens, kTokens);
    ExpectSameBits(Rows(c, sound, 0, kBroken), Rows(c, broken, 0, kBroken));
    for (int64_t i = kBroken * c.q_width(); i < std::ssize(broken); ++i) {
      ASSERT_TRUE(std::isnan(broken[i]));
    }
  }
}

// One bad value of a key is seen, whichever segment holds it.
TEST_F(AttentionLawTest, EverySegmentTellsOfItsNan) {
  constexpr int32_t kTokens = 70, kBroken = 5;
  for (const AttentionShape& shape : LawShapes()) {
    const AttentionCase c(shape);
    AttentionRun run(c, 1);
    if (run.refused()) continue;
    for (const int dim : {0, c.k_width() - 1}) {
      AttentionInputs inputs(c, kTokens);
      inputs.k[kBroken * c.k_width() + dim] = NAN;
      const std::vector<float> out = RunChunked(run, c, inputs, kTokens, kTokens);
      // The queries of the first or last KV head see it, from codes.
      const int64_t value = dim == 0 ? 0 : c.q_width() - 1;
      EXPECT_TRUE(std::isnan(out[(kTokens - 1) * c.q_width() + value]));
    }
  }
}

// Nor is a token seen that lies behind a row's window, or whose exact key and value are kept.
TEST_F(AttentionLawTest, HiddenTokensDoNotLeak) {
  constexpr int32_t kTokens = 300, kBroken = 70;
  for (const AttentionPath path :
       {AttentionPath::kFull, AttentionPath::kReconstruct, AttentionPath::kAbsorbed}) {
    for (const int window : {10, 64, 100}) {
      const bool full = path == AttentionPath::kFull;
      const AttentionCase c({.path = path,
                             .num_heads = 12,
                             .k_latent_heads = full ? 2 : 1,
                             .v_latent_heads = full ? 2 : 1,
                             .k = One(32, Codec::kInt4),
                             .v = One(32, full ? Codec::kF16 : Codec::kInt4),
                             .sinks = full ? 0 : 4,
                             .own_page = !full,
                             .window = window});
      AttentionInputs inputs(c, kTokens);
      AttentionRun run(c, 2);
      if (run.refused()) continue;
      const std::vector<float> sound = RunChunked(run, c, inputs, kTokens, 130);
      for (int32_t token = 0; token < c.spec().cache.sinks; ++token) {
        BreakLatents(c, token, inputs);
      }
      BreakLatents(c, kBroken, inputs);
      const std::vector<float> broken = RunChunked(run, c, inputs, kTokens, 130);
      ExpectSameBits(Rows(c, sound, 0, kBroken), Rows(c, broken, 0, kBroken));
      ExpectSameBits(Rows(c, sound, kBroken + window, kTokens),
                     Rows(c, broken, kBroken + window, kTokens));
      ASSERT_TRUE(std::isnan(Rows(c, broken, kBroken + window - 1, kTokens)[0]));
    }
  }
}

// The same of steps with one row a sequence, which may have kernels of their own.
TEST_F(AttentionLawTest, DecodeStepsTellOfWhatTheySeeAndOfNothingElse) {
  constexpr int32_t kTokens = 300;
  for (const AttentionPath path :
       {AttentionPath::kFull, AttentionPath::kReconstruct, AttentionPath::kAbsorbed}) {
    const bool full = path == AttentionPath::kFull;
    for (const Codec codec : {Codec::kF16, Codec::kInt8, Codec::kInt4}) {
      for (const int window : {0, 100}) {
        const AttentionCase c({.path = path,
                               .num_heads = 8,
                               .num_kv_heads = 2,
                               .head_dim = 64,
                               .k_latent_heads = full ? 2 : 1,
                               .v_latent_heads = full ? 2 : 1,
                               .k = One(64, codec),
                               .v = One(64, codec),
                               .window = window});
        for (const PlanKind& kind : PlanKinds()) {
          AttentionRun run(c, 1, kind);
          if (run.refused()) continue;
          for (const int32_t token : {0, 199, 250, 299}) {
            SCOPED_TRACE(testing::Message()
                         << kind.name << " " << Name(path) << " " << Info(codec).name << " window "
                         << window << " token " << token);
            for (const bool of_key : {false, true}) {
              AttentionInputs inputs(c, kTokens);
              std::vector<float>& broken = of_key ? inputs.k : inputs.v;
              const int width = of_key ? c.k_width() : c.v_width();
              std::fill_n(broken.begin() + token * width, width, of_key ? NAN : INFINITY);
              PagedCache cache(c.spec().cache, {kTokens});
              run.AppendReference(inputs, cache, cache.WholeStep());
              const bool seen = window == 0 || token > kTokens - 1 - window;
              for (const float value : run.Attend(inputs, cache, cache.LastStep(1))) {
                ASSERT_EQ(!std::isfinite(value), seen);
              }
            }
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace latentd
