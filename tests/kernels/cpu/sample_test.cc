#include "kernels/cpu/sample.h"

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/reference/sampling.h"
#include "tests/testing/random_values.h"

namespace latentd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

void ExpectSame(const std::vector<float>& logits, const SampleRow& row) {
  const auto vocab = static_cast<int64_t>(logits.size());
  const SampleResult want = ReferenceSampleRow(logits.data(), vocab, row);
  const SampleResult got = CpuSampleRow(logits.data(), vocab, row);
  ASSERT_EQ(got.ok, want.ok);
  ASSERT_EQ(got.token_id, want.token_id);
  EXPECT_NEAR(got.logprob, want.logprob, 1e-5);
  ASSERT_EQ(got.top.size(), want.top.size());
  for (size_t i = 0; i < got.top.size(); ++i) {
    EXPECT_EQ(got.top[i].token_id, want.top[i].token_id);
    EXPECT_NEAR(got.top[i].logprob, want.top[i].logprob, 1e-5);
  }
}

TEST(CpuSampleRow, IsTheReferenceForEverySetting) {
  constexpr int32_t kNoId = 1 << 20;  // outside of every vocabulary, as -1 is
  const std::vector<int32_t> tokens = {3, kNoId, 5, 900, 2, 5, 7, -1, 7, kNoId, 1};
  const std::vector<int32_t> banned = {11, kNoId, -1, 4};
  uint64_t draw = 0;
  for (int64_t vocab : {1, 63, 64, 65, 1000, 5000}) {
    for (float spread : {0.01f, 1.0f, 8.0f}) {
      const std::vector<float> logits = GaussianValues(vocab, 40 + vocab, spread);
      for (float temperature : {0.0f, 0.7f, 3.0f}) {
        for (int top_k : {0, 1, 40, 200000}) {
          for (float top_p : {1.0f, 0.95f, 0.1f}) {
            for (float min_p : {0.0f, 0.2f, 1.0f}) {
              SampleRow row{.temperature = temperature,
                            .top_k = top_k,
                            .top_p = top_p,
                            .min_p = min_p,
                            .seed = 5,
                            .position = static_cast<int64_t>(draw++),
                            .num_logprobs = static_cast<int>(draw % 4) - 1};
              ExpectSame(logits, row);
              if (vocab < 1000) continue;
              row.repetition_penalty = 1.3f;
              row.presence_penalty = 0.4f;
              row.frequency_penalty = -0.3f;
              row.tokens = tokens;
              row.num_prompt_tokens = 4;
              row.banned = banned;
              ExpectSame(logits, row);
            }
          }
        }
      }
    }
  }
}

TEST(CpuSampleRow, TheSmallestIdAmongEquals) {
  const std::vector<float> logits(200, 1.5f);
  EXPECT_EQ(CpuSampleRow(logits.data(), 200, {.temperature = 0.0f}).token_id, 0);
  for (int position = 0; position < 50; ++position) {
    const SampleRow row{.top_k = 3, .position = position, .num_logprobs = 2};
    const SampleResult result = CpuSampleRow(logits.data(), 200, row);
    EXPECT_LT(result.token_id, 3);
    ASSERT_EQ(result.top.size(), 2u);
    EXPECT_EQ(result.top[0].token_id, 0);
    EXPECT_EQ(result.top[1].token_id, 1);
  }
}

TEST(CpuSampleRow, DrawsByTheWeights) {
  const std::vector<float> logits = {std::log(0.1f), std::log(0.6f), std::log(0.3f)};
  std::map<int, int> counts;
  constexpr int kDraws = 20000;
  for (int i = 0; i < kDraws; ++i) {
    ++counts[CpuSampleRow(logits.data(), 3, {.seed = 9, .position = i}).token_id];
  }
  EXPECT_NEAR(counts[0], 0.1 * kDraws, 0.01 * kDraws);
  EXPECT_NEAR(counts[1], 0.6 * kDraws, 0.015 * kDraws);
  EXPECT_NEAR(counts[2], 0.3 * kDraws, 0.015 * kDraws);
}

TEST(CpuSampleRow, RowsThatCannotBeDrawnFrom) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (float temperature : {0.0f, 1.0f}) {
    for (size_t vocab : {1, 64, 200}) {
      for (const float bad : {nan, kInfinity}) {
        std::vector<float> logits(vocab, 0.0f);
        logits[vocab - 1] = bad;
        const SampleResult result =
            CpuSampleRow(logits.data(), vocab, {.temperature = temperature});
        EXPECT_FALSE(result.ok);
        EXPECT_EQ(result.token_id, -1);
      }
      const std::vector<float> none(vocab, -kInfinity);
      EXPECT_FALSE(CpuSampleRow(none.data(), vocab, {.temperature = temperature}).ok);
    }
    const std::vector<float> logits = {1.0f, -kInfinity};
    const std::vector<int32_t> banned = {0};
    EXPECT_FALSE(CpuSampleRow(logits.data(), 2, {.temperature = temperature, .banned = banned}).ok);
  }
}

}  // namespace
}  // namespace latentd
