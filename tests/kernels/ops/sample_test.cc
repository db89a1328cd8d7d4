#include "kernels/reference/sampling.h"

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "tests/testing/device_values.h"
#include "tests/testing/random_values.h"
#include "tests/testing/tested_backend.h"

namespace latentd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

using SampleTest = OpsTest;

// What `ops` draws from the same logits for every row.
std::vector<SampleResult> Sample(Ops& ops, const std::vector<float>& logits,
                                 const std::vector<SampleRow>& rows) {
  std::vector<float> all;
  for (size_t r = 0; r < rows.size(); ++r) all.insert(all.end(), logits.begin(), logits.end());
  const DeviceArray<float> device_logits = ToDevice(ops, all);
  std::vector<SampleResult> results(rows.size());
  ops.BeginStep({});
  ops.Sample({.logits = device_logits.data(),
              .vocab = std::ssize(logits),
              .rows = rows,
              .results = absl::MakeSpan(results)});
  EXPECT_TRUE(ops.device().Wait().ok());
  return results;
}

SampleResult SampleOne(Ops& ops, const std::vector<float>& logits, const SampleRow& row) {
  return Sample(ops, logits, {row})[0];
}

void ExpectReference(Ops& ops, const std::vector<float>& logits,
                     const std::vector<SampleRow>& rows) {
  const std::vector<SampleResult> results = Sample(ops, logits, rows);
  for (size_t r = 0; r < rows.size(); ++r) {
    SCOPED_TRACE(testing::Message()
                 << "vocabulary " << logits.size() << ", temperature " << rows[r].temperature
                 << ", top_k " << rows[r].top_k << ", top_p " << rows[r].top_p << ", min_p "
                 << rows[r].min_p << ", position " << rows[r].position);
    const SampleResult want = ReferenceSampleRow(logits.data(), std::ssize(logits), rows[r]);
    const SampleResult& got = results[r];
    ASSERT_EQ(got.ok, want.ok);
    ASSERT_EQ(got.token_id, want.token_id);
    EXPECT_NEAR(got.logprob, want.logprob, 1e-5);
    ASSERT_EQ(got.top.size(), want.top.size());
    for (size_t i = 0; i < got.top.size(); ++i) {
      EXPECT_EQ(got.top[i].token_id, want.top[i].token_id);
      EXPECT_NEAR(got.top[i].logprob, want.top[i].logprob, 1e-5);
    }
  }
}

// Every setting of what cuts and of the temperature, at positions of their own.
std::vector<SampleRow> EverySetting() {
  std::vector<SampleRow> rows;
  for (float temperature : {0.0f, 0.7f, 3.0f}) {
    for (int top_k : {0, 1, 40, 200000}) {
      for (float top_p : {1.0f, 0.95f, 0.1f}) {
        for (float min_p : {0.0f, 0.2f, 1.0f}) {
          const auto n = static_cast<int>(rows.size());
          rows.push_back({.temperature = temperature,
                          .top_k = top_k,
                          .top_p = top_p,
                          .min_p = min_p,
                          .seed = 5,
                          .position = n,
                          .num_logprobs = n % 4 - 1});
        }
      }
    }
  }
  return rows;
}

TEST_F(SampleTest, IsTheReferenceForEverySetting) {
  constexpr int32_t kNoId = 1 << 20;  // outside of every vocabulary, as -1 is
  const std::vector<int32_t> tokens = {3, kNoId, 5, 900, 2, 5, 7, -1, 7, kNoId, 1};
  const std::vector<int32_t> banned = {11, kNoId, -1, 4};
  const auto ops = NewOps(3);
  for (int64_t vocab : {1, 63, 64, 65, 1000, 5000}) {
    for (float spread : {0.01f, 1.0f, 8.0f}) {
      const std::vector<float> logits = GaussianValues(vocab, 40 + vocab, spread);
      std::vector<SampleRow> rows = EverySetting();
      ExpectReference(*ops, logits, rows);
      if (vocab < 1000) continue;
      for (SampleRow& row : rows) {
        row.repetition_penalty = 1.3f;
        row.presence_penalty = 0.4f;
        row.frequency_penalty = -0.3f;
        row.tokens = tokens;
        row.num_prompt_tokens = 4;
        row.banned = banned;
      }
      ExpectReference(*ops, logits, rows);
    }
  }
}

// Bans alone, and each penalty alone.
TEST_F(SampleTest, WhatChangesLogitsDoesSoAlone) {
  const std::vector<float> logits = GaussianValues(500, 8, 2.0f);
  const auto largest =
      static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const std::vector<int32_t> ids = {largest, 3, largest};
  std::vector<SampleRow> rows;
  for (float temperature : {0.0f, 1.0f}) {
    const SampleRow row{.temperature = temperature, .seed = 6, .num_logprobs = 3};
    rows.insert(rows.end(), 4, row);
    rows[rows.size() - 4].banned = ids;
    rows[rows.size() - 3].repetition_penalty = 3.0f;
    rows[rows.size() - 2].presence_penalty = 2.0f;
    rows[rows.size() - 1].frequency_penalty = 5.0f;
    for (size_t n = rows.size() - 3; n < rows.size(); ++n) rows[n].tokens = ids;
  }
  ExpectReference(*NewOps(), logits, rows);
}

// Equal numbers, -0 and 0 among them, and numbers that are left out, in every place of a cut.
TEST_F(SampleTest, EqualsAreTakenInTheOrderOfTheirIds) {
  const auto ops = NewOps();
  ExpectReference(*ops, std::vector<float>(3000, 1.5f), EverySetting());
  std::vector<float> logits = GaussianValues(3000, 3, 4.0f);
  for (float& logit : logits) logit = std::round(logit / 4) * 4;
  ExpectReference(*ops, logits, EverySetting());
  for (size_t i = 0; i < logits.size(); ++i) {
    if (i % 3 != 0) logits[i] = -kInfinity;
  }
  const std::vector<SampleResult> results = Sample(*ops, logits, EverySetting());
  for (size_t r = 0; r < results.size(); ++r) {
    const SampleRow row = EverySetting()[r];
    EXPECT_EQ(results[r].token_id,
              ReferenceSampleRow(logits.data(), std::ssize(logits), row).token_id);
  }
}

TEST_F(SampleTest, TheSmallestIdAmongEquals) {
  const auto ops = NewOps();
  const std::vector<float> logits(200, 1.5f);
  EXPECT_EQ(SampleOne(*ops, logits, {.temperature = 0.0f}).token_id, 0);
  std::vector<SampleRow> rows;
  for (int position = 0; position < 50; ++position) {
    rows.push_back({.top_k = 3, .position = position, .num_logprobs = 2});
  }
  for (const SampleResult& result : Sample(*ops, logits, rows)) {
    EXPECT_LT(result.token_id, 3);
    ASSERT_EQ(result.top.size(), 2u);
    EXPECT_EQ(result.top[0].token_id, 0);
    EXPECT_EQ(result.top[1].token_id, 1);
  }
}

TEST_F(SampleTest, DrawsByTheWeights) {
  constexpr int kDraws = 20000;
  std::vector<SampleRow> rows;
  for (int i = 0; i < kDraws; ++i) rows.push_back({.seed = 9, .position = i});
  std::map<int, int> counts;
  for (const SampleResult& result :
       Sample(*NewOps(), {std::log(0.1f), std::log(0.6f), std::log(0.3f)}, rows)) {
    ++counts[result.token_id];
  }
  EXPECT_NEAR(counts[0], 0.1 * kDraws, 0.01 * kDraws);
  EXPECT_NEAR(counts[1], 0.6 * kDraws, 0.015 * kDraws);
  EXPECT_NEAR(counts[2], 0.3 * kDraws, 0.015 * kDraws);
}

// A vocabulary of today's size, with all kinds of rows in one call and alone.
TEST_F(SampleTest, ARowIsDrawnAloneAsAmongOthers) {
  const auto ops = NewOps(3);
  const std::vector<float> logits = GaussianValues(128256, 9, 3.0f);
  const std::vector<int32_t> tokens = {7, 100000, 100000, 7};
  std::vector<SampleRow> rows;
  for (int n = 0; n < 12; ++n) {
    rows.push_back({.temperature = 0.3f * static_cast<float>(n % 4),
                    .top_k = n % 3 == 0 ? 50 : 0,
                    .top_p = n % 2 == 0 ? 0.9f : 1.0f,
                    .min_p = n % 5 == 0 ? 0.02f : 0.0f,
                    .frequency_penalty = n > 8 ? 1.0f : 0.0f,
                    .position = n,
                    .tokens = tokens,
                    .num_logprobs = 20});
  }
  ExpectReference(*ops, logits, rows);
  const std::vector<SampleResult> together = Sample(*ops, logits, rows);
  for (size_t r = 0; r < rows.size(); ++r) {
    const SampleResult alone = SampleOne(*ops, logits, rows[r]);
    EXPECT_EQ(alone.token_id, together[r].token_id);
    EXPECT_EQ(alone.logprob, together[r].logprob);
    ASSERT_EQ(alone.top.size(), together[r].top.size());
    for (size_t i = 0; i < alone.top.size(); ++i) {
      EXPECT_EQ(alone.top[i].token_id, together[r].top[i].token_id);
      EXPECT_EQ(alone.top[i].logprob, together[r].top[i].logprob);
    }
  }
}

TEST_F(SampleTest, RowsThatCannotBeDrawnFrom) {
  const auto ops = NewOps();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (float temperature : {0.0f, 1.0f}) {
    const SampleRow row{.temperature = temperature, .num_logprobs = 2};
    for (size_t vocab : {1, 64, 200}) {
      for (const float bad : {nan, kInfinity}) {
        std::vector<float> logits(vocab, 0.0f);
        logits[vocab - 1] = bad;
        const SampleResult result = SampleOne(*ops, logits, row);
        EXPECT_FALSE(result.ok);
        EXPECT_EQ(result.token_id, -1);
        EXPECT_TRUE(result.top.empty());
      }
      EXPECT_FALSE(SampleOne(*ops, std::vector<float>(vocab, -kInfinity), row).ok);
    }
    const std::vector<int32_t> banned = {0};
    const SampleRow without{.temperature = temperature, .banned = banned};
    EXPECT_FALSE(SampleOne(*ops, {1.0f, -kInfinity}, without).ok);
    EXPECT_TRUE(SampleOne(*ops, {1.0f, 0.0f}, without).ok);
  }
}

}  // namespace
}  // namespace latentd
