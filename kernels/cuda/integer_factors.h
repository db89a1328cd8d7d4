#pragma once

#include <cstdint>
#include <vector>

#include "kernels/params.h"

namespace latentd {

inline constexpr int kFactorColumns = 128;                     // of a pass
inline constexpr int kFactorPartBytes = kFactorColumns * 128;  // of 128 dims of K

// k_up of a plan as int8 (PlanView::k_int8), for units of `heads` KV heads.
//
// A unit is passes of 128 columns, KV head after head; a column is a dim of a key: x of 8 pairs, y
// of the same, x of the next 8, ... Of each pass there are parts of 128 dims of K, [128
// columns][128 bytes]: products of 32 dims, in them byte 4 t + j and 16 after it meet the codes of
// word t of two tiles (kDimMajor). The 16-byte parts of a column n are exchanged: part p lies at p
// ^ (n % 8).
struct IntegerFactorValues {
  std::vector<uint8_t> values;  // [num_kv_heads / heads][IntegerFactorBytes()]
  std::vector<float> scales;    // [num_kv_heads][head_dim / 2]
};
IntegerFactorValues MakeIntegerFactors(const AttentionSpec& spec, int heads);
int IntegerFactorBytes(int head_dim, int k_dims, int heads);

}  // namespace latentd
