#include "kernels/cuda/integer_factors.h"

#include <cmath>
#include <cstdint>

#include "gtest/gtest.h"
#include "tests/kernels/ops/attention_run.h"

namespace latentd {
namespace {

// Every byte is the factor that the drawing of integer_factors.h says, to half of its scale.
TEST(IntegerFactorsTest, BytesAreTheFactorsOfTheirPlace) {
  for (const int head_dim : {64, 128}) {
    for (const int k_dims : {16, 144, 256}) {
      for (const bool k_norm : {false, true}) {
        for (const int heads : {1, 3}) {
          SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << " dims " << k_dims
                                          << " norm " << k_norm << " heads " << heads);
          const AttentionCase c({.path = AttentionPath::kReconstruct,
                                 .num_heads = 6,
                                 .num_kv_heads = 6,
                                 .head_dim = head_dim,
                                 .k = One(k_dims, Codec::kInt4),
                                 .v = One(32, Codec::kInt4),
                                 .k_norm = k_norm});
          const AttentionSpec& spec = c.spec();
          const IntegerFactorValues factors = MakeIntegerFactors(spec, heads);
          const int64_t unit_bytes = IntegerFactorBytes(head_dim, k_dims, heads);
          ASSERT_EQ(std::ssize(factors.values), 6 / heads * unit_bytes);
          const int parts = (k_dims + 127) / 128, pairs = head_dim / 2;
          for (int64_t at = 0; at < std::ssize(factors.values); ++at) {
            const int64_t in_unit = at % unit_bytes, n = in_unit / 128 % 128, byte = in_unit % 128;
            const int64_t column = in_unit / (parts * 128 * 128) * 128 + n;
            const int64_t along = (byte / 16 ^ n % 8) * 16 + byte % 16, word = along / 4 % 4;
            const int64_t dim = in_unit / (128 * 128) % parts * 128 + along / 32 * 32 +
                                word / 2 * 16 + word % 2 * 4 + along % 4 + along % 32 / 16 * 8;
            const auto value = static_cast<int8_t>(factors.values[at]);
            if (column >= heads * head_dim || dim >= k_dims) {
              ASSERT_EQ(value, 0);
              continue;
            }
            const int64_t head = at / unit_bytes * heads + column / head_dim, i = column % head_dim;
            const int64_t pair = i / 16 * 8 + i % 8, row = i / 8 % 2 == 0 ? pair : pair + pairs;
            const float scale = factors.scales[head * pairs + pair];
            const float norm = k_norm ? spec.k_norm[row] : 1.0f;
            const float want = norm * spec.k_up[(head * head_dim + row) * k_dims + dim];
            ASSERT_LE(std::abs(static_cast<float>(value) * scale - want), 0.501f * scale);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace latentd
