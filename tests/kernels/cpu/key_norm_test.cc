#include "kernels/cpu/key_norm.h"

#include <cmath>
#include <cstdlib>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "kernels/params.h"
#include "tests/kernels/cpu/vector_targets.h"
#include "tests/testing/random_values.h"

namespace latentd {
namespace {

// Factors of one head, and the memory that they point to.
struct Case {
  Case(int head_dim, int dims, float epsilon)
      : k_up(GaussianValues(int64_t{head_dim} * dims, 1)), k_bias(GaussianValues(head_dim, 2)) {
    factors = {.k_up = k_up.data(),
               .k_bias = k_bias.data(),
               .head_dim = head_dim,
               .dims = dims,
               .epsilon = epsilon};
  }
  uint16_t Want(const float* latent) const {
    double squares = 0;
    for (int i = 0; i < factors.head_dim; ++i) {
      double key = k_bias[i];
      for (int d = 0; d < factors.dims; ++d) key += double{k_up[i * factors.dims + d]} * latent[d];
      squares += key * key;
    }
    return FloatToHalf(
        static_cast<float>(1.0 / std::sqrt(squares / factors.head_dim + factors.epsilon)));
  }
  std::vector<uint16_t> Norms(const std::vector<float>& latents, int64_t stride, int tokens) const {
    std::vector<uint16_t> norms(tokens, 0xFFFF);
    InverseKeyNorms(factors, latents.data(), stride, tokens, norms.data());
    return norms;
  }
  std::vector<float> k_up, k_bias;
  KeyNormFactors factors;
};

TEST(InverseKeyNorms, AreWithinAUnitInTheLastPlace) {
  ForEachVectorTarget([] {
    for (const int head_dim : {8, 24, 128}) {
      for (const int dims : {16, 48, 256}) {
        const Case c(head_dim, dims, 1e-6f);
        constexpr int kTokens = 37;
        const std::vector<float> latents = GaussianValues(kTokens * dims, 3);
        const std::vector<uint16_t> got = c.Norms(latents, dims, kTokens);
        for (int t = 0; t < kTokens; ++t) {
          EXPECT_LE(std::abs(got[t] - c.Want(latents.data() + t * dims)), 1) << "token " << t;
        }
      }
    }
  });
}

TEST(InverseKeyNorms, OfATokenDependOnItAlone) {
  ForEachVectorTarget([] {
    constexpr int kTokens = 9, kDims = 80, kStride = 96;
    const Case c(64, kDims, 1e-6f);
    const std::vector<float> latents = GaussianValues(kTokens * kStride, 3);
    const std::vector<uint16_t> together = c.Norms(latents, kStride, kTokens);
    for (int first = 0; first < kTokens; ++first) {
      const std::vector<float> rest(latents.begin() + first * kStride, latents.end());
      for (int count = 1; count <= kTokens - first; ++count) {
        EXPECT_EQ(
            c.Norms(rest, kStride, count),
            std::vector<uint16_t>(together.begin() + first, together.begin() + first + count));
      }
    }
  });
}

TEST(InverseKeyNorms, StayFiniteAndShowWhatIsBroken) {
  Case c(16, 16, 0.0f);
  std::fill(c.k_bias.begin(), c.k_bias.end(), 0.0f);
  std::vector<float> latents(3 * 16, 0.0f);
  latents[16] = NAN;
  latents[32] = INFINITY;
  const std::vector<uint16_t> norms = c.Norms(latents, 16, 3);
  EXPECT_EQ(HalfToFloat(norms[0]), kMaxKeyNorm);
  EXPECT_TRUE(std::isnan(HalfToFloat(norms[1])));
  EXPECT_FALSE(HalfToFloat(norms[2]) > 0.0f);  // 0 or NaN: no finite key comes of it
}

}  // namespace
}  // namespace latentd
