#include "engine/compressor/attention_gradient.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "engine/compressor/dense_algebra.h"
#include "gtest/gtest.h"
#include "tests/testing/random_values.h"

namespace latentd {
namespace {

struct Case {
  int heads, kv_heads, head_dim;
  int64_t tokens;
  int window = 0;
  bool alibi = false;
};

struct Gradients {
  std::vector<double> out, dq, dk, dv;
};

// Attention and its derivative as the formulas say, one query and head after the other, in double.
Gradients Plain(const AttentionGradient::Shape& s, int64_t tokens, const std::vector<float>& q,
                const std::vector<float>& k, const std::vector<float>& v,
                const std::vector<float>& dout) {
  Gradients g{.out = std::vector<double>(q.size()),
              .dq = std::vector<double>(q.size()),
              .dk = std::vector<double>(k.size()),
              .dv = std::vector<double>(v.size())};
  const int per_kv = s.num_heads / s.num_kv_heads, dims = s.head_dim;
  for (int64_t t = 0; t < tokens; ++t) {
    for (int h = 0; h < s.num_heads; ++h) {
      const int64_t first = s.window > 0 ? std::max<int64_t>(0, t - s.window + 1) : 0;
      const auto at_q = [&](int d) { return (t * s.num_heads + h) * dims + d; };
      const auto at_kv = [&](int64_t i, int d) {
        return (i * s.num_kv_heads + h / per_kv) * dims + d;
      };
      std::vector<double> p, dp;
      double sum = 0, mean = 0;
      for (int64_t i = first; i <= t; ++i) {
        double score = s.alibi_slopes.empty() ? 0 : s.alibi_slopes[h] * double(i - t);
        for (int d = 0; d < dims; ++d) {
          score += double{s.softmax_scale} * q[at_q(d)] * k[at_kv(i, d)];
        }
        p.push_back(std::exp(score));
        sum += p.back();
      }
      for (int64_t i = first; i <= t; ++i) {
        p[i - first] /= sum;
        double slope = 0;
        for (int d = 0; d < dims; ++d) {
          g.out[at_q(d)] += p[i - first] * v[at_kv(i, d)];
          g.dv[at_kv(i, d)] += p[i - first] * dout[at_q(d)];
          slope += double{dout[at_q(d)]} * v[at_kv(i, d)];
        }
        dp.push_back(slope);
        mean += p[i - first] * slope;
      }
      for (int64_t i = first; i <= t; ++i) {
        const double ds = s.softmax_scale * p[i - first] * (dp[i - first] - mean);
        for (int d = 0; d < dims; ++d) {
          g.dq[at_q(d)] += ds * k[at_kv(i, d)];
          g.dk[at_kv(i, d)] += ds * q[at_q(d)];
        }
      }
    }
  }
  return g;
}

void ExpectNear(const std::vector<float>& found, const std::vector<double>& expected,
                const char* what) {
  for (size_t i = 0; i < expected.size(); ++i) {
    ASSERT_NEAR(found[i], expected[i], 2e-5 * (1 + std::abs(expected[i]))) << what << " " << i;
  }
}

class AttentionGradientTest : public ::testing::TestWithParam<Case> {};

TEST_P(AttentionGradientTest, OutputsAndGradientsAreThoseOfTheFormulas) {
  const Case c = GetParam();
  AttentionGradient::Shape shape{.num_heads = c.heads,
                                 .num_kv_heads = c.kv_heads,
                                 .head_dim = c.head_dim,
                                 .softmax_scale = 0.4f,
                                 .window = c.window};
  for (int h = 0; c.alibi && h < c.heads; ++h) shape.alibi_slopes.push_back(0.3f / (1 << h));
  const int64_t queries = c.tokens * c.heads * c.head_dim,
                keys = c.tokens * c.kv_heads * c.head_dim;
  const std::vector<float> q = GaussianValues(queries, 1), k = GaussianValues(keys, 2),
                           v = GaussianValues(keys, 3), dout = GaussianValues(queries, 4);
  const Gradients expected = Plain(shape, c.tokens, q, k, v, dout);
  std::vector<float> first_dk;
  for (const int threads : {1, 3}) {
    const auto algebra = CreateCpuAlgebra(threads);
    AttentionGradient attention(shape, algebra->pool());
    constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
    std::vector<float> out(queries, kNaN), dq = dout, dk(keys, kNaN), dv(keys, kNaN);
    attention.Forward(q.data(), k.data(), v.data(), c.tokens, out.data());
    attention.Backward(q.data(), k.data(), v.data(), dq.data(), c.tokens, dq.data(), dk.data(),
                       dv.data());
    ExpectNear(out, expected.out, "out");
    ExpectNear(dq, expected.dq, "dq");
    ExpectNear(dk, expected.dk, "dk");
    ExpectNear(dv, expected.dv, "dv");
    if (threads == 1) first_dk = dk;
    EXPECT_EQ(dk, first_dk) << "bits depend on the number of threads";
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, AttentionGradientTest,
                         ::testing::Values(Case{1, 1, 8, 1}, Case{4, 2, 16, 127},
                                           Case{6, 2, 8, 128}, Case{3, 3, 8, 129},
                                           Case{2, 1, 8, 300, 50}, Case{2, 2, 8, 150, 1},
                                           Case{4, 4, 8, 140, 0, true},
                                           Case{4, 2, 8, 270, 131, true}));

}  // namespace
}  // namespace latentd
