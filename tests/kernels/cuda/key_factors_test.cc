#include "kernels/cuda/key_factors.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "tests/kernels/ops/attention_run.h"

namespace latentd {
namespace {

// Where a number of a unit's image belongs, as key_factors.h draws it.
struct Place {
  int64_t column, dim;
};
Place PlaceOf(FactorKind kind, int64_t parts, int64_t at) {
  const int64_t n = at / 128 % 128, byte = (at % 128 / 16 ^ n % 8) * 16 + at % 16;
  const int64_t column = at / (parts * 128 * 128) * 128 + n, part = at / (128 * 128) % parts;
  if (kind == FactorKind::kFp16) {
    const int64_t half = byte / 2 % 16, in_tile = half % 8 / 2 * 4 + half % 2 + half / 8 * 2;
    return {column, part * 64 + byte / 32 * 16 + in_tile};
  }
  const int64_t word = byte / 4 % 4;
  return {column, part * 128 + byte / 32 * 32 + word / 2 * 16 + word % 2 * 4 + byte % 4 +
                      byte % 32 / 16 * 8};
}

struct Shape {
  FactorKind kind;
  int head_dim, k_dims, heads;
  bool k_norm, biases;
};

void ExpectNumbersOfTheirPlaces(const Shape& of) {
  const AttentionCase c({.path = AttentionPath::kReconstruct,
                         .num_heads = 6,
                         .num_kv_heads = 6,
                         .head_dim = of.head_dim,
                         .k = One(of.k_dims, Codec::kInt4),
                         .v = One(32, Codec::kInt4),
                         .biases = of.biases,
                         .k_norm = of.k_norm});
  const AttentionSpec& spec = c.spec();
  const bool int8 = of.kind == FactorKind::kInt8;
  const KeyFactorValues factors = MakeKeyFactors(spec, of.kind, of.heads);
  const int64_t unit_bytes = KeyFactorBytes(spec, of.kind, of.heads);
  ASSERT_EQ(std::ssize(factors.values), 6 / of.heads * unit_bytes);
  const int64_t passes = (of.heads * of.head_dim + 127) / 128;
  const int64_t parts = int8 ? (of.k_dims + 127) / 128 : (of.k_dims + 63) / 64;
  const int64_t bias_bytes = passes * (of.biases ? 512 : 0);
  ASSERT_EQ(unit_bytes, passes * parts * 128 * 128 + bias_bytes);
  const int pairs = of.head_dim / 2;
  for (int64_t at = 0; at < std::ssize(factors.values); at += int8 ? 1 : 2) {
    const int64_t in_unit = at % unit_bytes;
    const bool bias = in_unit >= unit_bytes - bias_bytes;
    Place place = PlaceOf(of.kind, parts, in_unit);
    float value = 0;
    if (bias) {
      if (at % 4 != 0) continue;
      place = {(in_unit - (unit_bytes - bias_bytes)) / 4, 0};
      std::memcpy(&value, &factors.values[at], sizeof(value));
    } else if (int8) {
      value = static_cast<int8_t>(factors.values[at]);
    } else {
      uint16_t half;
      std::memcpy(&half, &factors.values[at], sizeof(half));
      value = HalfToFloat(half);
    }
    if (place.column >= of.heads * of.head_dim || place.dim >= of.k_dims) {
      ASSERT_EQ(value, 0);
      continue;
    }
    const int64_t head = at / unit_bytes * of.heads + place.column / of.head_dim;
    const int64_t i = place.column % of.head_dim;
    const int64_t pair = i / 16 * 8 + i % 8, row = i / 8 % 2 == 0 ? pair : pair + pairs;
    const float scale = factors.scales[head * pairs + pair];
    const int64_t in_all = head * of.head_dim + row;
    const float want = (of.k_norm ? spec.k_norm[row] : 1.0f) *
                       (bias ? spec.k_bias[in_all] : spec.k_up[in_all * of.k_dims + place.dim]);
    const float error = std::abs(value * scale - want);
    ASSERT_LE(std::abs(value), bias ? 256.1f : int8 ? 127.0f : 1.0f);
    ASSERT_LE(error, int8 ? 0.501f * scale : 0.0005f * std::abs(want) + 1e-7f * scale);
  }
}

// To half a unit of int8, or of fp16's last place.
TEST(KeyFactorsTest, NumbersAreTheFactorsOfTheirPlace) {
  for (const int head_dim : {64, 128}) {
    for (const int k_dims : {16, 144, 256}) {
      for (const bool k_norm : {false, true}) {
        for (const int heads : {1, 3}) {
          SCOPED_TRACE(testing::Message() << "head_dim " << head_dim << " dims " << k_dims
                                          << " norm " << k_norm << " heads " << heads);
          ExpectNumbersOfTheirPlaces({FactorKind::kInt8, head_dim, k_dims, heads, k_norm, false});
          ExpectNumbersOfTheirPlaces({FactorKind::kFp16, head_dim, k_dims, heads, k_norm, false});
          ExpectNumbersOfTheirPlaces({FactorKind::kFp16, head_dim, k_dims, heads, k_norm, true});
        }
      }
    }
  }
}

// Of pairs that RoPE turns; the others are left alone.
TEST(KeyFactorsTest, TurnsAreThoseOfTheirTokensAndPairs) {
  for (const int rope_pairs : {64, 40}) {
    const AttentionCase c({.path = AttentionPath::kReconstruct,
                           .num_heads = 4,
                           .num_kv_heads = 4,
                           .head_dim = 128,
                           .k = One(64, Codec::kInt4),
                           .v = One(32, Codec::kInt4),
                           .rope_pairs = rope_pairs});
    const RopeTable& rope = *c.spec().rope;
    for (const FactorKind kind : {FactorKind::kInt8, FactorKind::kFp16}) {
      const bool int8 = kind == FactorKind::kInt8;
      const std::vector<uint16_t> turns = MakePageTurns(c.spec(), kind);
      ASSERT_EQ(turns.size(), 8u * kTurnThreads * 8u);
      for (size_t at = 0; at < turns.size(); ++at) {
        const int64_t thread = at / 8 % kTurnThreads, of = at % 8;
        const int64_t token = thread / 32 * 16 + thread % 32 / 4 * 2 + of % 4 / 2;
        const int64_t pair = at / (8 * kTurnThreads) * 8 + thread % 4 * 2 + of % 2;
        const bool sine = of >= 4;
        float want = sine ? 0.0f : 1.0f;
        if (pair < rope_pairs) want = (sine ? rope.sin : rope.cos)[token * rope_pairs + pair];
        const float turn = int8 ? BFloat16ToFloat(turns[at]) : HalfToFloat(turns[at]);
        ASSERT_NEAR(turn, want, int8 ? 0x1p-9f : 0x1p-12f) << token << " " << pair << " " << sine;
      }
    }
  }
}

}  // namespace
}  // namespace latentd
