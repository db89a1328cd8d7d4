#include "kernels/cpu/activation_block.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "gtest/gtest.h"
#include "tests/kernels/cpu/vector_targets.h"
#include "tests/testing/random_values.h"

namespace latentd {
namespace {

TEST(ActivationBlock, ValuesAreWithinHalfAStep) {
  ForEachVectorTarget([] {
    const std::vector<float> row = GaussianValues(32 * 5, 7, 3.0f);
    ActivationBlock blocks[5];
    QuantizeActivations(row.data(), row.size(), blocks);
    for (int b = 0; b < 5; ++b) {
      float absmax = 0;
      int sums[2] = {0, 0};
      for (int i = 0; i < 32; ++i) {
        const float x = row[32 * b + i];
        absmax = std::max(absmax, std::abs(x));
        EXPECT_NEAR(blocks[b].codes[i] * blocks[b].scale, x, 0.5001f * blocks[b].scale);
        EXPECT_GE(blocks[b].codes[i], -127);
        sums[i / 16] += blocks[b].codes[i];
      }
      EXPECT_EQ(blocks[b].scale, absmax / 127.0f);
      EXPECT_EQ(blocks[b].minus_half_sum[0], -sums[0]);
      EXPECT_EQ(blocks[b].minus_half_sum[1], -sums[1]);
      EXPECT_EQ(blocks[b].minus_sum, -sums[0] - sums[1]);
      EXPECT_EQ(blocks[b].scaled_sum, blocks[b].scale * static_cast<float>(sums[0] + sums[1]));
    }
  });
}

TEST(ActivationBlock, ZerosAndTheSmallestNumbersAreZero) {
  ForEachVectorTarget([] {
    for (float x : {0.0f, -0.0f, std::numeric_limits<float>::denorm_min(), -1e-38f}) {
      const std::vector<float> row(32, x);
      ActivationBlock block;
      QuantizeActivations(row.data(), 32, &block);
      EXPECT_EQ(block.scale * block.codes[0], 0.0f) << x;
      EXPECT_EQ(block.scaled_sum, 0.0f) << x;
    }
  });
}

TEST(ActivationBlock, WhatIsNotFiniteIsSeen) {
  ForEachVectorTarget([] {
    for (float x :
         {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity()}) {
      std::vector<float> row(64, 1.0f);
      row[5] = x;
      ActivationBlock blocks[2];
      QuantizeActivations(row.data(), 64, blocks);
      EXPECT_TRUE(std::isnan(blocks[0].scale));
      EXPECT_TRUE(std::isnan(blocks[0].scaled_sum));
      EXPECT_FALSE(std::isnan(blocks[1].scale));
    }
  });
}

}  // namespace
}  // namespace latentd
