#include "kernels/reference/sampling.h"

#include <cmath>
#include <map>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/random_values.h"

namespace latentd {
namespace {

SampleResult Sample(const std::vector<float>& logits, const SampleRow& row) {
  return ReferenceSampleRow(logits.data(), static_cast<int64_t>(logits.size()), row);
}

// Share of each id in many draws.
std::map<int32_t, double> Shares(const std::vector<float>& logits, SampleRow row) {
  constexpr int kDraws = 20000;
  std::map<int32_t, double> shares;
  for (row.position = 0; row.position < kDraws; ++row.position) {
    shares[Sample(logits, row).token_id] += 1.0 / kDraws;
  }
  return shares;
}

std::set<int32_t> Drawn(const std::vector<float>& logits, const SampleRow& row) {
  std::set<int32_t> ids;
  for (const auto& [id, share] : Shares(logits, row)) ids.insert(id);
  return ids;
}

std::vector<float> LogsOf(const std::vector<double>& probabilities) {
  std::vector<float> logits;
  for (const double p : probabilities) logits.push_back(static_cast<float>(std::log(p) + 3.0));
  return logits;
}

const std::vector<float> kLogits = LogsOf({0.1, 0.4, 0.2, 0.25, 0.05});

TEST(Sampling, GreedyTakesTheSmallestOfTheLargest) {
  EXPECT_EQ(Sample({1, 5, 2, 5}, {.temperature = 0.0f}).token_id, 1);
  EXPECT_EQ(Sample({-INFINITY, -3, -2}, {.temperature = 0.0f}).token_id, 2);
}

TEST(Sampling, DrawsByTheSoftmaxOfTheLogits) {
  const auto shares = Shares(kLogits, {.seed = 7});
  const double want[] = {0.1, 0.4, 0.2, 0.25, 0.05};
  for (int32_t id = 0; id < 5; ++id) EXPECT_NEAR(shares.at(id), want[id], 0.012) << id;
}

TEST(Sampling, TemperatureSharpens) {
  const auto shares = Shares(kLogits, {.temperature = 0.5f, .seed = 7});
  const double total = 0.01 + 0.16 + 0.04 + 0.0625 + 0.0025;
  EXPECT_NEAR(shares.at(1), 0.16 / total, 0.012);
  EXPECT_EQ(Drawn(kLogits, {.temperature = 1e-6f}), std::set<int32_t>{1});
}

TEST(Sampling, ADrawIsAFunctionOfSeedAndPosition) {
  const std::vector<float> logits = GaussianValues(1000, 1);
  std::set<int32_t> ids;
  for (int64_t position = 0; position < 50; ++position) {
    const SampleRow row{.seed = 3, .position = position};
    const int32_t id = Sample(logits, row).token_id;
    EXPECT_EQ(Sample(logits, row).token_id, id);
    ids.insert(id);
  }
  EXPECT_GT(ids.size(), 20u);
  int differences = 0;
  for (uint64_t seed = 0; seed < 50; ++seed) {
    differences += Sample(logits, {.seed = seed, .position = 0}).token_id !=
                   Sample(logits, {.seed = seed + 1, .position = 0}).token_id;
  }
  EXPECT_GT(differences, 40);
}

TEST(Sampling, TopKKeepsTheLikeliest) {
  EXPECT_EQ(Drawn(kLogits, {.top_k = 1}), std::set<int32_t>({1}));
  EXPECT_EQ(Drawn(kLogits, {.top_k = 3}), std::set<int32_t>({1, 2, 3}));
  EXPECT_EQ(Drawn(kLogits, {.top_k = 99}).size(), 5u);
  EXPECT_EQ(Drawn({2, 2, 2, 2}, {.top_k = 2}), std::set<int32_t>({0, 1}))
      << "the smallest ids among equals";
  EXPECT_EQ(Drawn(std::vector<float>(200, 1.0f), {.top_k = 3}), std::set<int32_t>({0, 1, 2}));
}

TEST(Sampling, TopPKeepsTheShortestPrefix) {
  EXPECT_EQ(Drawn(kLogits, {.top_p = 1e-6f}), std::set<int32_t>({1}));
  EXPECT_EQ(Drawn(kLogits, {.top_p = 0.39f}), std::set<int32_t>({1}));
  EXPECT_EQ(Drawn(kLogits, {.top_p = 0.41f}), std::set<int32_t>({1, 3}));
  EXPECT_EQ(Drawn(kLogits, {.top_p = 0.84f}), std::set<int32_t>({1, 2, 3}));
  EXPECT_EQ(Drawn(kLogits, {.top_p = 0.86f}), std::set<int32_t>({0, 1, 2, 3}));
  // After top_k the shares are those of what is left: .4 / .65 = .615.
  EXPECT_EQ(Drawn(kLogits, {.top_k = 2, .top_p = 0.6f}), std::set<int32_t>({1}));
  // The kept ones keep their proportions.
  EXPECT_NEAR(Shares(kLogits, {.top_p = 0.6f}).at(1), 0.4 / 0.65, 0.012);
}

TEST(Sampling, MinPIsRelativeToTheLikeliest) {
  EXPECT_EQ(Drawn(kLogits, {.min_p = 1.0f}), std::set<int32_t>({1}));
  EXPECT_EQ(Drawn(kLogits, {.min_p = 0.6f}), std::set<int32_t>({1, 3}));
  EXPECT_EQ(Drawn(kLogits, {.min_p = 0.24f}), std::set<int32_t>({0, 1, 2, 3}));
}

TEST(Sampling, RepetitionPenaltyCoversPromptAndOutputOnce) {
  const std::vector<int32_t> tokens = {0, 0, 2};
  const SampleRow row{
      .temperature = 0.0f, .repetition_penalty = 2.0f, .tokens = tokens, .num_prompt_tokens = 2};
  EXPECT_EQ(Sample({10, 4.9f, 8}, row).token_id, 0)
      << "5 after the penalty, once for two occurrences";
  EXPECT_EQ(Sample({10, 5.1f, 8}, row).token_id, 1);
  EXPECT_EQ(Sample({-3, -5.9f, -9}, row).token_id, 1) << "negative logits are multiplied";
  EXPECT_EQ(Sample({-3, -6.1f, -9}, row).token_id, 0);
}

TEST(Sampling, PresenceAndFrequencyCoverTheOutput) {
  const std::vector<int32_t> tokens = {1, 0, 0, 2};
  const SampleRow presence{
      .temperature = 0.0f, .presence_penalty = 3.0f, .tokens = tokens, .num_prompt_tokens = 1};
  EXPECT_EQ(Sample({10, 6.9f, 0}, presence).token_id, 0);
  EXPECT_EQ(Sample({10, 7.1f, 0}, presence).token_id, 1) << "the prompt's token is not penalised";
  const SampleRow frequency{
      .temperature = 0.0f, .frequency_penalty = 3.0f, .tokens = tokens, .num_prompt_tokens = 1};
  EXPECT_EQ(Sample({10, 3.9f, 0}, frequency).token_id, 0);
  EXPECT_EQ(Sample({10, 4.1f, 0}, frequency).token_id, 1);
}

TEST(Sampling, BannedIdsAreNeverDrawn) {
  const std::vector<int32_t> banned = {1, 3};
  EXPECT_EQ(Drawn(kLogits, {.banned = banned}), std::set<int32_t>({0, 2, 4}));
  EXPECT_EQ(Sample(kLogits, {.temperature = 0.0f, .banned = banned}).token_id, 2);
}

TEST(Sampling, MaskedLogitsAreNeverDrawn) {
  EXPECT_EQ(Drawn({-INFINITY, 0, -INFINITY, 0}, {}), std::set<int32_t>({1, 3}));
  EXPECT_EQ(Drawn({-INFINITY, 0, -INFINITY, 0}, {.top_k = 3}), std::set<int32_t>({1, 3}));
}

TEST(Sampling, BadRowsAreSeen) {
  const std::vector<int32_t> all = {0, 1};
  for (const float temperature : {0.0f, 1.0f}) {
    for (const std::vector<float>& logits :
         {std::vector<float>{NAN, 1}, {1, NAN}, {1, INFINITY}, {-INFINITY, -INFINITY}}) {
      const SampleResult result = Sample(logits, {.temperature = temperature, .num_logprobs = 1});
      EXPECT_FALSE(result.ok);
      EXPECT_EQ(result.token_id, -1);
    }
    EXPECT_FALSE(Sample({1, 2}, {.temperature = temperature, .banned = all}).ok)
        << "nothing is left";
    EXPECT_TRUE(Sample({-INFINITY, 1}, {.temperature = temperature}).ok);
  }
}

TEST(Sampling, LogprobsAreThoseOfTheRawLogits) {
  const std::vector<int32_t> banned = {1};
  const SampleResult result =
      Sample(kLogits, {.temperature = 0.0f, .banned = banned, .num_logprobs = 2});
  EXPECT_EQ(result.token_id, 3);
  EXPECT_NEAR(result.logprob, std::log(0.25), 1e-5);
  ASSERT_EQ(result.top.size(), 2u);
  EXPECT_EQ(result.top[0].token_id, 1);
  EXPECT_NEAR(result.top[0].logprob, std::log(0.4), 1e-5);
  EXPECT_EQ(result.top[1].token_id, 3);
  EXPECT_TRUE(Sample(kLogits, {.num_logprobs = 0}).top.empty());
  EXPECT_LT(Sample(kLogits, {.num_logprobs = 0}).logprob, 0.0f);
  EXPECT_EQ(Sample(kLogits, {.num_logprobs = 99}).top.size(), 5u);
}

}  // namespace
}  // namespace latentd
