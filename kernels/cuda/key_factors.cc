#include "kernels/cuda/key_factors.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "kernels/cache_layout.h"
#include "kernels/cuda/convert.h"
#include "kernels/cuda/plan_view.h"
#include "kernels/dtype.h"

namespace latentd {
namespace {

int NumberBytes(FactorKind kind) { return kind == FactorKind::kInt8 ? 1 : 2; }
int DimsOfPart(FactorKind kind) { return 128 / NumberBytes(kind); }
int Parts(const AttentionSpec& spec, FactorKind kind) {
  return (spec.cache.k.dims() + DimsOfPart(kind) - 1) / DimsOfPart(kind);
}
int Passes(const AttentionSpec& spec, int heads) {
  return (heads * spec.head_dim + kFactorColumns - 1) / kFactorColumns;
}

// The dim of K of number k along a column.
int DimOf(FactorKind kind, int k) {
  if (kind == FactorKind::kFp16) {
    return k / kTileDims * kTileDims + k % 8 / 2 * 4 + k % 2 + k % kTileDims / 8 * 2;
  }
  const int byte = k % 32, t = byte / 4 % 4;
  return k / 32 * 32 + 16 * (t / 2) + 4 * (t % 2) + byte % 4 + 8 * (byte / 16);
}

void Put(FactorKind kind, float value, uint8_t* to) {
  if (kind == FactorKind::kInt8) {
    *to = static_cast<uint8_t>(static_cast<int8_t>(std::lrint(value)));
  } else {
    const uint16_t half = FloatToHalf(value);
    std::memcpy(to, &half, sizeof(half));
  }
}

// What a row of k_up and its bias are to be multiplied with.
float Norm(const AttentionSpec& spec, int row) {
  return spec.k_norm == nullptr ? 1.0f : spec.k_norm[row];
}

// Of the rows of a pair of a head.
float ScaleOf(const AttentionSpec& spec, FactorKind kind, int head, Pair pair) {
  const int k_dims = spec.cache.k.dims();
  float largest = 0.0f, bias = 0.0f;
  for (const int row : {pair.x, pair.y}) {
    const int64_t in_all = int64_t{head} * spec.head_dim + row;
    for (int d = 0; d < k_dims; ++d) {
      largest = std::max(largest, std::abs(Norm(spec, row) * spec.k_up[in_all * k_dims + d]));
    }
    if (spec.k_bias != nullptr) {
      bias = std::max(bias, std::abs(Norm(spec, row) * spec.k_bias[in_all]));
    }
  }
  constexpr float kLeast = 1e-30f, kMostBias = 256.0f;  // so that floats and halves hold products
  const float most = std::max({largest, bias / kMostBias, kLeast});
  return kind == FactorKind::kInt8 ? most / 127.0f : most;
}

}  // namespace

int KeyFactorBytes(const AttentionSpec& spec, FactorKind kind, int heads) {
  const int bias_bytes = spec.k_bias == nullptr ? 0 : kBiasBytes;
  return Passes(spec, heads) * (Parts(spec, kind) * kFactorPartBytes + bias_bytes);
}

KeyFactorValues MakeKeyFactors(const AttentionSpec& spec, FactorKind kind, int heads) {
  const int k_dims = spec.cache.k.dims(), parts = Parts(spec, kind);
  const int head_dim = spec.head_dim, pairs = head_dim / 2;
  const int size = NumberBytes(kind), part_dims = DimsOfPart(kind);
  const int64_t unit_bytes = KeyFactorBytes(spec, kind, heads);
  const int64_t all_parts_bytes = int64_t{Passes(spec, heads)} * parts * kFactorPartBytes;
  KeyFactorValues out;
  out.values.resize(spec.num_kv_heads / heads * unit_bytes);
  for (int head = 0; head < spec.num_kv_heads; ++head) {
    for (int j = 0; j < pairs; ++j) {
      out.scales.push_back(ScaleOf(spec, kind, head, PairOf(spec.rope->pairs, j)));
    }
    uint8_t* unit = out.values.data() + head / heads * unit_bytes;
    for (int i = 0; i < head_dim; ++i) {
      // Blocks of 8 columns: x of 8 pairs, then y of the same.
      const int j = i / 16 * 8 + i % 8;
      const Pair pair = PairOf(spec.rope->pairs, j);
      const int row = i / 8 % 2 == 0 ? pair.x : pair.y;
      const int64_t in_all = int64_t{head} * head_dim + row;
      const float scale = out.scales[int64_t{head} * pairs + j];
      const auto scaled = [&](float x) { return Norm(spec, row) * x / scale; };
      const int column = head % heads * head_dim + i, n = column % kFactorColumns;
      uint8_t* pass = unit + int64_t{column / kFactorColumns} * parts * kFactorPartBytes;
      for (int k = 0; k < part_dims * parts; ++k) {  // along a column
        const int dim = DimOf(kind, k);
        if (dim >= k_dims) continue;
        const int byte = k % part_dims * size, part = byte / 16 ^ n % 8;
        Put(kind, scaled(spec.k_up[in_all * k_dims + dim]),
            pass + k / part_dims * kFactorPartBytes + n * 128 + part * 16 + byte % 16);
      }
      if (spec.k_bias == nullptr) continue;
      const float bias = scaled(spec.k_bias[in_all]);
      std::memcpy(unit + all_parts_bytes + int64_t{column} * 4, &bias, sizeof(bias));
    }
  }
  return out;
}

std::vector<uint16_t> MakePageTurns(const AttentionSpec& spec, FactorKind kind) {
  const RopeTable& rope = *spec.rope;
  std::vector<uint16_t> out;
  out.reserve(int64_t{spec.head_dim} / 16 * kTurnThreads * 8);
  for (int block = 0; block < spec.head_dim / 16; ++block) {
    for (int thread = 0; thread < kTurnThreads; ++thread) {
      const int token = 16 * (thread / 32) + thread % 32 / 4 * 2;
      for (const bool sine : {false, true}) {
        for (int i = 0; i < 4; ++i) {
          const int pair = 8 * block + thread % 4 * 2 + i % 2;
          const int64_t at = int64_t{token + i / 2} * rope.pairs + pair;
          const float unturned = sine ? 0.0f : 1.0f;
          const float value = pair >= rope.pairs ? unturned : sine ? rope.sin[at] : rope.cos[at];
          out.push_back(kind == FactorKind::kInt8 ? ToBFloat16(value) : FloatToHalf(value));
        }
      }
    }
  }
  return out;
}

}  // namespace latentd
