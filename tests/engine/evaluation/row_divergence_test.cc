#include "engine/evaluation/row_divergence.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/random.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

double LogSumExp(const std::vector<float>& x) {
  double sum = 0;
  for (const float v : x) sum += std::exp(static_cast<double>(v));
  return std::log(sum);
}

double PlainKl(const std::vector<float>& p, const std::vector<float>& q) {
  const double p_lse = LogSumExp(p), q_lse = LogSumExp(q);
  double kl = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    kl += std::exp(p[i] - p_lse) * ((p[i] - p_lse) - (q[i] - q_lse));
  }
  return kl;
}

std::vector<float> RandomLogits(int vocab, uint64_t seed) {
  std::vector<float> logits(vocab);
  for (int i = 0; i < vocab; ++i) logits[i] = 20.0f * RandomUniform(seed, i) - 10.0f;
  return logits;
}

TEST(RowDivergence, IsTheReferencesExpectation) {
  const std::vector<float> p = {std::log(0.75f), std::log(0.25f)}, q = {1.0f, 1.0f};
  const RowDivergence row = CompareRows(p, q, 1);
  EXPECT_NEAR(row.kl, 0.75 * std::log(1.5) + 0.25 * std::log(0.5), 1e-7);
  EXPECT_NEAR(row.p_logprob, std::log(0.25), 1e-7);
  EXPECT_NEAR(row.q_logprob, std::log(0.5), 1e-12);
}

TEST(RowDivergence, AgreesWithPlainSumsForEverySize) {
  for (const int vocab : {1, 2, 7, 8, 9, 64, 65, 1000, 49152, 49157}) {
    const std::vector<float> p = RandomLogits(vocab, 1), q = RandomLogits(vocab, 2);
    const RowDivergence row = CompareRows(p, q, vocab / 2);
    EXPECT_NEAR(row.kl, PlainKl(p, q), 1e-11) << vocab;
    EXPECT_NEAR(row.p_logprob, p[vocab / 2] - LogSumExp(p), 1e-11) << vocab;
    EXPECT_NEAR(row.q_logprob, q[vocab / 2] - LogSumExp(q), 1e-11) << vocab;
    EXPECT_NEAR(RowLogprob(q, vocab / 2), row.q_logprob, 1e-12) << vocab;
    EXPECT_EQ(row.p_top, std::max_element(p.begin(), p.end()) - p.begin()) << vocab;
    EXPECT_EQ(row.q_top, std::max_element(q.begin(), q.end()) - q.begin()) << vocab;
  }
}

TEST(RowDivergence, SmallDifferencesAreNotLostInRounding) {
  const std::vector<float> p = RandomLogits(50000, 3);
  std::vector<float> q = p;
  EXPECT_NEAR(CompareRows(p, p, 0).kl, 0.0, 1e-13);
  for (size_t i = 0; i < q.size(); ++i) q[i] += i % 2 == 0 ? 1e-3f : -1e-3f;
  EXPECT_NEAR(CompareRows(p, q, 0).kl, 5e-7, 1e-8);  // half the variance of the differences
}

TEST(RowDivergence, LargeAndShiftedLogitsAreTheSamePrediction) {
  std::vector<float> p = RandomLogits(1000, 4), q = RandomLogits(1000, 5);
  for (float& x : p) x = std::round(x * 64.0f) / 64.0f;  // so that the shift is exact
  const double kl = CompareRows(p, q, 7).kl;
  for (float& x : p) x += 4096.0f;
  EXPECT_NEAR(CompareRows(p, q, 7).kl, kl, 1e-9);
}

TEST(RowDivergence, TheSmallestIdWinsAmongEquals) {
  const std::vector<float> p = {0, 2, 2, 1}, q = {1, 0, 1, 1};
  EXPECT_EQ(CompareRows(p, q, 0).p_top, 1);
  EXPECT_EQ(CompareRows(p, q, 0).q_top, 0);
}

TEST(RowDivergence, ANaNShows) {
  std::vector<float> p(100, 0.0f), q(100, 0.0f);
  q[57] = std::numeric_limits<float>::quiet_NaN();
  EXPECT_FALSE(std::isfinite(CompareRows(p, q, 0).kl));
  EXPECT_FALSE(std::isfinite(CompareRows(q, p, 0).kl));
  EXPECT_FALSE(std::isfinite(RowLogprob(q, 0)));
}

}  // namespace
}  // namespace latentd
