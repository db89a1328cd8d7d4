#include "kernels/cpu/attention.h"

#include <cmath>
#include <cstring>
#include <memory>

#include "gtest/gtest.h"
#include "kernels/cpu/amx_product.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/reference/attention.h"
#include "tests/kernels/cpu/vector_targets.h"
#include "tests/testing/attention_case.h"

namespace latentd {
namespace {

std::vector<Segment> One(int dims, Codec codec) { return {{.dims = dims, .codec = codec}}; }

// A plan with its threads, and the cache of some sequences.
class CpuRun {
 public:
  CpuRun(const AttentionCase& c, int threads)
      : case_(c), pool_(threads), scratch_(threads), plan_(*PrepareCpuAttention(c.spec())) {}
  CpuRun(const AttentionCase& c, std::unique_ptr<AttentionPlan> plan)
      : case_(c), pool_(1), scratch_(1), plan_(std::move(plan)) {}

  void Append(const AttentionInputs& inputs, PagedCache& cache, const PagedStep& step) {
    const std::vector<float> k = RowsOf(step, inputs.k, case_.k_width());
    const std::vector<float> v = RowsOf(step, inputs.v, case_.v_width());
    CpuAppendCache(pool_, {.plan = plan_.get(),
                           .cache = cache.View(step),
                           .k = k.data(),
                           .k_stride = case_.k_width(),
                           .v = v.data(),
                           .v_stride = case_.v_width()});
  }

  std::vector<float> Attend(const AttentionInputs& inputs, PagedCache& cache,
                            const PagedStep& step) {
    const std::vector<float> q = RowsOf(step, inputs.q, case_.q_width());
    std::vector<float> out(q.size(), NAN);
    CpuAttention(
        pool_, scratch_,
        {.plan = plan_.get(), .cache = cache.View(step), .q = q.data(), .out = out.data()});
    return out;
  }

 private:
  const AttentionCase& case_;
  ThreadPool pool_;
  Scratch scratch_;
  std::unique_ptr<AttentionPlan> plan_;
};

std::vector<float> AttendReference(const AttentionCase& c, const AttentionInputs& inputs,
                                   PagedCache& cache, const PagedStep& step) {
  const ReferenceAttentionPlan plan(c.spec());
  const std::vector<float> q = RowsOf(step, inputs.q, c.q_width());
  std::vector<float> out(q.size());
  ReferenceAttention({.plan = &plan, .cache = cache.View(step), .q = q.data(), .out = out.data()});
  return out;
}

// Norm of the difference over the norm of the expected rows.
double RelativeError(const std::vector<float>& expected, const std::vector<float>& actual) {
  double error = 0, norm = 0;
  for (size_t i = 0; i < expected.size(); ++i) {
    const double difference = actual[i] - expected[i];
    error += difference * difference;
    norm += double{expected[i]} * expected[i];
  }
  return std::sqrt(error / norm);
}

// k_up in int8 is the one approximation: about half a percent of a key, beside the ten percent of
// its 4-bit codes.
double Tolerance(const AttentionShape& shape) {
  if (shape.path != AttentionPath::kReconstruct) return 1e-5;
  bool few_bits = false, integer = false;
  for (const Segment& segment : shape.k) {
    few_bits |= Info(segment.codec).bits <= 4;
    integer |= Info(segment.codec).scale_bytes > 0;
  }
  return few_bits ? 1e-2 : integer ? 1e-4 : 1e-5;
}

void ExpectAgreesWithReference(const AttentionShape& shape, const std::vector<int32_t>& kv_lens,
                               int32_t q_len) {
  const AttentionCase c(shape);
  PagedCache cache(c.spec().cache, kv_lens);
  const AttentionInputs inputs(c, cache.num_tokens());
  CpuRun cpu(c, 2);
  cpu.Append(inputs, cache, cache.WholeStep());
  const PagedStep step = cache.LastStep(q_len);
  const std::vector<float> actual = cpu.Attend(inputs, cache, step);
  const std::vector<float> expected = AttendReference(c, inputs, cache, step);
  EXPECT_LT(RelativeError(expected, actual), Tolerance(shape));
  EXPECT_TRUE(cache.GuardsIntact());
}

const std::vector<int32_t> kRagged = {0, 1, 63, 64, 65, 130};

TEST(CpuAttentionTest, AgreesOnEveryPathAndCodec) {
  for (const AttentionPath path :
       {AttentionPath::kFull, AttentionPath::kReconstruct, AttentionPath::kAbsorbed}) {
    for (const Codec codec : kAllCodecs) {
      SCOPED_TRACE(testing::Message() << Name(path) << " " << Info(codec).name);
      ExpectAgreesWithReference({.path = path, .k = One(32, codec), .v = One(32, codec)}, kRagged,
                                70);
    }
  }
}

TEST(CpuAttentionTest, AgreesWithEveryKindOfVectors) {
  ForEachVectorTarget([] {
    for (const AttentionPath path :
         {AttentionPath::kFull, AttentionPath::kReconstruct, AttentionPath::kAbsorbed}) {
      for (const Codec codec : kAllCodecs) {
        SCOPED_TRACE(testing::Message() << Name(path) << " " << Info(codec).name);
        ExpectAgreesWithReference(
            {.path = path, .num_heads = 14, .k = One(32, codec), .v = One(32, codec)}, {67}, 3);
      }
    }
  });
}

TEST(CpuAttentionTest, AgreesOnMixedSegmentsAndGroups) {
  const std::vector<Segment> k = {{.dims = 16, .codec = Codec::kInt8},
                                  {.dims = 64, .codec = Codec::kInt4},
                                  {.dims = 16, .codec = Codec::kF16},
                                  {.dims = 32, .codec = Codec::kMinMax2}};
  const std::vector<Segment> v = {{.dims = 48, .codec = Codec::kInt4},
                                  {.dims = 16, .codec = Codec::kF32},
                                  {.dims = 16, .codec = Codec::kInt2}};
  for (const AttentionPath path : {AttentionPath::kReconstruct, AttentionPath::kAbsorbed}) {
    for (const int k_latent_heads : {1, 2, 4}) {
      for (const int v_latent_heads : {1, 4}) {
        ExpectAgreesWithReference({.path = path,
                                   .num_heads = 12,
                                   .num_kv_heads = 4,
                                   .head_dim = 64,
                                   .k_latent_heads = k_latent_heads,
                                   .v_latent_heads = v_latent_heads,
                                   .k = k,
                                   .v = v,
                                   .biases = true},
                                  {5, 64, 100}, 3);
      }
    }
  }
}

TEST(CpuAttentionTest, AgreesOnEveryHeadShape) {
  for (const int head_dim : {8, 24, 40, 64, 80, 128, 256}) {
    for (const int q_per_kv : {1, 3, 7, 8}) {
      SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << " q_per_kv " << q_per_kv);
      AttentionShape shape = {.num_heads = 2 * q_per_kv, .head_dim = head_dim};
      const int padded = (head_dim + 15) / 16 * 16;
      shape.k = shape.v = One(padded, Codec::kF16);
      ExpectAgreesWithReference(shape, {66}, 4);
      shape.path = AttentionPath::kReconstruct;
      shape.k = One(48, Codec::kF16);
      shape.biases = true;
      ExpectAgreesWithReference(shape, {66}, 4);
      shape.rope_pairs = head_dim / 4;  // partly rotated heads
      ExpectAgreesWithReference(shape, {66}, 4);
      shape.path = AttentionPath::kAbsorbed;
      ExpectAgreesWithReference(shape, {66}, 4);
    }
  }
}

TEST(CpuAttentionTest, AgreesRoundTheEdgesOfSplits) {
  for (const AttentionPath path :
       {AttentionPath::kFull, AttentionPath::kReconstruct, AttentionPath::kAbsorbed}) {
    for (const Codec codec : {Codec::kF16, Codec::kInt4}) {
      SCOPED_TRACE(testing::Message() << Name(path) << " " << Info(codec).name);
      ExpectAgreesWithReference({.path = path, .k = One(32, codec), .v = One(32, codec)},
                                {1023, 1024, 1025, 3000}, 3);
    }
  }
}

// ---- The law: a row's bits follow from its query and its sequence's cache alone ----

std::vector<AttentionShape> LawShapes() {
  return {
      {.k = One(32, Codec::kF16), .v = One(32, Codec::kF16)},
      {.num_heads = 6, .k = One(32, Codec::kInt4), .v = One(32, Codec::kInt3)},
      {.path = AttentionPath::kReconstruct,
       .k_latent_heads = 1,
       .k = {{.dims = 32, .codec = Codec::kInt8}, {.dims = 16, .codec = Codec::kInt2}},
       .v = One(32, Codec::kInt4),
       .biases = true},
      {.path = AttentionPath::kReconstruct, .k = One(32, Codec::kF16), .v = One(16, Codec::kF16)},
      {.path = AttentionPath::kAbsorbed, .k = One(32, Codec::kInt4), .v = One(32, Codec::kF32)},
  };
}

void ExpectSameBits(const std::vector<float>& a, const std::vector<float>& b) {
  ASSERT_EQ(a.size(), b.size());
  EXPECT_EQ(std::memcmp(a.data(), b.data(), a.size() * sizeof(float)), 0);
}

// Appends and attends [0, kv_len) in chunks, on a fresh cache. So early chunks run while later
// tokens are poison.
std::vector<float> RunChunked(CpuRun& run, const AttentionCase& c, const AttentionInputs& inputs,
                              int32_t kv_len, int32_t chunk) {
  PagedCache cache(c.spec().cache, {kv_len});
  std::vector<float> all;
  for (int32_t from = 0; from < kv_len; from += chunk) {
    const PagedStep step = cache.Step({from}, {std::min(from + chunk, kv_len)});
    run.Append(inputs, cache, step);
    const std::vector<float> out = run.Attend(inputs, cache, step);
    all.insert(all.end(), out.begin(), out.end());
  }
  return all;
}

TEST(CpuAttentionLawTest, ChunksAndThreadsDoNotChangeBits) {
  constexpr int32_t kTokens = 1200;
  for (const AttentionShape& shape : LawShapes()) {
    const AttentionCase c(shape);
    const AttentionInputs inputs(c, kTokens);
    CpuRun one(c, 1);
    const std::vector<float> whole = RunChunked(one, c, inputs, kTokens, kTokens);
    for (const float value : whole) ASSERT_TRUE(std::isfinite(value));
    for (const int threads : {1, 2, 3}) {
      CpuRun run(c, threads);
      for (const int32_t chunk : {kTokens, 500, 67}) {
        SCOPED_TRACE(testing::Message() << threads << " threads, chunks of " << chunk);
        ExpectSameBits(whole, RunChunked(run, c, inputs, kTokens, chunk));
      }
    }
    ExpectSameBits(whole, RunChunked(one, c, inputs, kTokens, 1));
  }
}

TEST(CpuAttentionLawTest, TheBatchDoesNotChangeBits) {
  const std::vector<int32_t> kv_lens = {1100, 3, 64, 200};
  for (const AttentionShape& shape : LawShapes()) {
    const AttentionCase c(shape);
    PagedCache cache(c.spec().cache, kv_lens);
    const AttentionInputs inputs(c, cache.num_tokens());
    CpuRun run(c, 2);
    run.Append(inputs, cache, cache.WholeStep());
    const std::vector<float> batched = run.Attend(inputs, cache, cache.LastStep(2));
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

// A token that went wrong is seen by those after it and by nobody else.
TEST(CpuAttentionLawTest, LaterTokensDoNotLeak) {
  constexpr int32_t kTokens = 150, kBroken = 101;  // a pass of the kernels has rows on both sides
  for (const AttentionShape& shape : LawShapes()) {
    const AttentionCase c(shape);
    AttentionInputs inputs(c, kTokens);
    CpuRun run(c, 1);
    const std::vector<float> sound = RunChunked(run, c, inputs, kTokens, kTokens);
    for (int i = 0; i < c.k_width(); ++i) inputs.k[kBroken * c.k_width() + i] = NAN;
    for (int i = 0; i < c.v_width(); ++i) inputs.v[kBroken * c.v_width() + i] = INFINITY;
    const std::vector<float> broken = RunChunked(run, c, inputs, kTokens, kTokens);
    const auto row = [&](const std::vector<float>& all, int32_t end) {
      return std::vector<float>(all.begin(), all.begin() + end * c.q_width());
    };
    ExpectSameBits(row(sound, kBroken), row(broken, kBroken));
    for (int64_t i = kBroken * c.q_width(); i < std::ssize(broken); ++i) {
      ASSERT_TRUE(std::isnan(broken[i]));
    }
  }
}

TEST(CpuAttentionTest, AmxGivesTheSameBits) {
  if (!RequestAmx()) GTEST_SKIP() << "AMX is not there";
  const AttentionCase c(
      {.path = AttentionPath::kReconstruct,
       .head_dim = 80,
       .k_latent_heads = 1,
       .k = {{.dims = 96, .codec = Codec::kInt4}, {.dims = 16, .codec = Codec::kInt8}},
       .v = One(32, Codec::kF16)});
  PagedCache cache(c.spec().cache, {100});
  const AttentionInputs inputs(c, cache.num_tokens());
  CpuRun with(c, std::make_unique<CpuAttentionPlan>(c.spec(), /*use_amx=*/true));
  CpuRun without(c, std::make_unique<CpuAttentionPlan>(c.spec(), /*use_amx=*/false));
  with.Append(inputs, cache, cache.WholeStep());
  ForEachVectorTarget([&] {
    ExpectSameBits(with.Attend(inputs, cache, cache.LastStep(5)),
                   without.Attend(inputs, cache, cache.LastStep(5)));
  });
}

TEST(CpuAttentionTest, RefusesWhatItCannotHold) {
  const AttentionCase c(
      {.path = AttentionPath::kAbsorbed, .k = One(4112, Codec::kF16), .v = One(16, Codec::kF16)});
  const auto plan = PrepareCpuAttention(c.spec());
  EXPECT_EQ(plan.status().code(), absl::StatusCode::kUnimplemented);
  EXPECT_NE(plan.status().message().find("4112"), std::string::npos);
}

}  // namespace
}  // namespace latentd
