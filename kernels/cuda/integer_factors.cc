#include "kernels/cuda/integer_factors.h"

#include <algorithm>
#include <cmath>

#include "kernels/cuda/plan_view.h"

namespace latentd {
namespace {

int Parts(int k_dims) { return (k_dims + 127) / 128; }

}  // namespace

int IntegerFactorBytes(int head_dim, int k_dims, int heads) {
  return (heads * head_dim + kFactorColumns - 1) / kFactorColumns * Parts(k_dims) *
         kFactorPartBytes;
}

IntegerFactorValues MakeIntegerFactors(const AttentionSpec& spec, int heads) {
  const int k_dims = spec.cache.k.dims(), parts = Parts(k_dims);
  const int head_dim = spec.head_dim, pairs = head_dim / 2;

  // Rows as integers, dim after dim; a norm's weights are part of them.
  IntegerFactorValues out;
  std::vector<int8_t> rows(int64_t{spec.num_kv_heads} * head_dim * k_dims);
  for (int head = 0; head < spec.num_kv_heads; ++head) {
    for (int j = 0; j < pairs; ++j) {
      const Pair pair = PairOf(spec.rope->pairs, j);
      float largest = 0.0f;
      const auto value = [&](int row, int d) {
        const float norm = spec.k_norm == nullptr ? 1.0f : spec.k_norm[row];
        return norm * spec.k_up[(int64_t{head} * head_dim + row) * k_dims + d];
      };
      for (const int row : {pair.x, pair.y}) {
        for (int d = 0; d < k_dims; ++d) largest = std::max(largest, std::abs(value(row, d)));
      }
      const float scale = largest / 127.0f, inverse = largest > 0.0f ? 127.0f / largest : 0.0f;
      out.scales.push_back(scale);
      for (const int row : {pair.x, pair.y}) {
        for (int d = 0; d < k_dims; ++d) {
          const auto rounded = static_cast<int8_t>(std::lrint(value(row, d) * inverse));
          rows[(int64_t{head} * head_dim + row) * k_dims + d] = rounded;
        }
      }
    }
  }
  const int64_t unit_bytes = IntegerFactorBytes(head_dim, k_dims, heads);
  out.values.resize(spec.num_kv_heads / heads * unit_bytes);
  for (int head = 0; head < spec.num_kv_heads; ++head) {
    uint8_t* unit = out.values.data() + head / heads * unit_bytes;
    for (int i = 0; i < head_dim; ++i) {
      // Blocks of 8 columns: x of 8 pairs, then y of the same.
      const Pair pair = PairOf(spec.rope->pairs, i / 16 * 8 + i % 8);
      const int8_t* row =
          rows.data() + (int64_t{head} * head_dim + (i / 8 % 2 == 0 ? pair.x : pair.y)) * k_dims;
      const int column = head % heads * head_dim + i;
      uint8_t* pass = unit + column / kFactorColumns * parts * kFactorPartBytes;
      const int n = column % kFactorColumns;
      for (int d = 0; d < 128 * parts; ++d) {  // along a column
        const int byte = d % 32, t = byte / 4 % 4;
        const int dim = d / 32 * 32 + 16 * (t / 2) + 4 * (t % 2) + byte % 4 + 8 * (byte / 16);
        if (dim >= k_dims) continue;
        const int part = d % 128 / 16 ^ n % 8;
        pass[d / 128 * kFactorPartBytes + n * 128 + part * 16 + d % 16] =
            static_cast<uint8_t>(row[dim]);
      }
    }
  }
  return out;
}

}  // namespace latentd
