#pragma once

#include <cstdint>
#include <vector>

#include "kernels/params.h"

namespace latentd {

// How decode attention multiplies k_up with latents: as int8 with codes of at most 4 bits, or as
// fp16 with latents in fp16.
enum class FactorKind : uint8_t { kInt8, kFp16 };

inline constexpr int kFactorColumns = 128;                     // of a pass
inline constexpr int kFactorPartBytes = kFactorColumns * 128;  // of 128 dims of K, or 64 in fp16
inline constexpr int kBiasBytes = kFactorColumns * 4;          // of a pass

// k_up of a plan as int8 or fp16 (PlanView::key_factors), for units of `heads` KV heads.
//
// A unit is passes of 128 columns, KV head after head; a column is a dim of a key: x of 8 pairs, y
// of the same, x of the next 8, ... Of each pass there are parts, [128 columns][128 bytes]. The
// 16-byte parts of a column n are exchanged: part p lies at p ^ (n % 8).
//
//   kInt8  128 dims of K, products of 32: in them byte 4 t + j and 16 after it meet the codes of
//          word t of two tiles (kDimMajor)
//   kFp16  64 dims of K, products of 16, tile after tile: halves 2 t + e and 8 after it are dims
//          4 t + e and 2 after it. Past the last dim there are zeros.
//
// kFp16 with a k_bias: after all passes [128] floats of each, what its columns begin with.
//
// A norm's weights are part of both. A pair's scale brings its factors to 127 (kInt8) or 1 (kFp16)
// at most, its bias to 256.
struct KeyFactorValues {
  std::vector<uint8_t> values;  // [num_kv_heads / heads][KeyFactorBytes()]
  std::vector<float> scales;    // [num_kv_heads][head_dim / 2]
};
KeyFactorValues MakeKeyFactors(const AttentionSpec& spec, FactorKind kind, int heads);
int KeyFactorBytes(const AttentionSpec& spec, FactorKind kind, int heads);

// KeyFactors::page_turns, as bf16 (kInt8) or fp16: [head_dim / 16][kTurnThreads] of 8 numbers.
// Those of block b and thread 32 w + l are the cosines of tokens 16 w + 2 (l / 4) and the next one,
// of pairs 8 b + 2 (l % 4) and the next one each, then the sines. Pairs that RoPE leaves alone are
// not turned.
inline constexpr int kTurnThreads = 128;
std::vector<uint16_t> MakePageTurns(const AttentionSpec& spec, FactorKind kind);

}  // namespace latentd
