#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/page_tile.cuh"

namespace latentd {

// Cached codes as the halves that tensor cores take, before their scales.

// Codes of 2 to 4 bits of one token of V: dims 4 half + j and 8 + 4 half + j of a tile in the
// nibbles of byte j.
template <int kBits>
__device__ inline uint32_t ValueNibbles(const uint8_t* tile, int token, int half) {
  const auto* words = reinterpret_cast<const uint32_t*>(tile);
  if (kBits == 4) return words[2 * token + half];
  const uint32_t low = words[token] >> (2 * half) & 0x33333333u;
  if (kBits == 2) return low;
  const uint32_t high = reinterpret_cast<const uint16_t*>(tile + 4 * kBlockTokens)[token];
  return low | BitsToBytes(high >> 4 * half & 15) << 2 |
         BitsToBytes(high >> (8 + 4 * half) & 15) << 6;
}
// Bits 4 to 7 of both halves as numbers, less what `middle` says: with the exponent of 64 they are
// its units.
__device__ inline uint32_t NibbleValues(uint32_t bits, __half2 middle) {
  return AsBits(__hadd2(AsHalves(AndOr(bits, 0x00F000F0u, 0x54005400u)), middle));
}
// -(64 + the grid's middle).
__device__ inline __half2 NibbleMiddle(int bits) {
  return __float2half2_rn(-64.0f - 0.5f * static_cast<float>((1 << bits) - 1));
}
// Bytes 0 and 1 of `two` as numbers, less the middle of 8 bits.
__device__ inline uint32_t ByteValues(uint32_t two, int selector) {
  const __half2 biased = AsHalves(__byte_perm(two, 0x64646464u, selector));
  return AsBits(__hadd2(__hadd2(biased, __float2half2_rn(-1024.0f)), __float2half2_rn(-127.5f)));
}

// kExchanged: a 16-byte part of a tile of halves of V lies exchanged in shared memory, against bank
// conflicts: part c of token n at c ^ (n / 4 % 2).
template <bool kExchanged>
__device__ inline FragmentA LoadValues(const uint8_t* tile, int token) {
  // Four 8 x 8 matrices, transposed: tokens and dims (0, 0), (0, 8), (8, 0), (8, 8).
  const int lane = threadIdx.x % 32, row = token + lane / 16 * 8 + lane % 8, part = lane / 8 % 2;
  return LoadTransposed(tile + (2 * row + (kExchanged ? part ^ (row / 4 % 2) : part)) * 16);
}

}  // namespace latentd
