#pragma once

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/cache_tile.cuh"

namespace latentd {

// A latent head's codes as decode kernels walk over them: where each tile begins.

struct KeyTile {   // 16 dims of K
  int offset = 0;  // from the latent head's start
  int8_t bits = 0;
  int8_t segment = 0;
};
struct ValueBlock {  // up to 64 dims of V, of one segment
  int offset = 0;    // from the latent head's start
  int first_dim = 0;
  int8_t tiles = 0;
  int8_t bits = 0;
  int8_t segment = 0;
};
inline constexpr int kValueBlockTiles = 4;

// Tiles of 8 queries that kernels are made for.
__host__ __device__ constexpr int QueryTiles(int queries) {
  return queries <= 8 ? 1 : queries <= 16 ? 2 : 4;
}

// The high bits of a token's 3-bit codes of K (kDimMajor) where nibbles have them: of dims 4 half +
// j in bit 2 of byte j, of dims 8 + 4 half + j in bit 6.
__device__ inline uint32_t KeyHighBits(uint32_t bits, int half) {
  const auto spread = [](uint32_t four) {  // bit 4 j as bit 8 j
    const uint32_t two = (four & 0x0011u) | (four & 0x1100u) << 8;
    return (two & 0x00010001u) | (two & 0x00100010u) << 4;
  };
  return spread(bits >> half & 0x1111u) << 2 | spread(bits >> (2 + half) & 0x1111u) << 6;
}

// How many there are; the first `most` are written.
inline int ValueBlocks(const PlaneView& plane, int most, ValueBlock* blocks) {
  int count = 0;
  for (int s = 0; s < plane.num_segments; ++s) {
    const SegmentView& segment = plane.segments[s];
    const int bits = BitsOf(segment.codec), tiles = segment.dims / kTileDims;
    for (int tile = 0; tile < tiles; tile += kValueBlockTiles) {
      if (count < most) {
        blocks[count] = {.offset = segment.offset + tile * (kTileDims * kBlockTokens * bits / 8),
                         .first_dim = segment.first_dim + tile * kTileDims,
                         .tiles = static_cast<int8_t>(std::min(kValueBlockTiles, tiles - tile)),
                         .bits = static_cast<int8_t>(bits),
                         .segment = static_cast<int8_t>(s)};
      }
      ++count;
    }
  }
  return count;
}

inline int KeyTiles(const PlaneView& plane, int most, KeyTile* tiles) {
  int count = 0;
  for (int s = 0; s < plane.num_segments; ++s) {
    const SegmentView& segment = plane.segments[s];
    const int bits = BitsOf(segment.codec);
    for (int tile = 0; tile < segment.dims / kTileDims; ++tile) {
      if (count < most) {
        tiles[count] = {.offset = segment.offset + tile * (kTileDims * kBlockTokens * bits / 8),
                        .bits = static_cast<int8_t>(bits),
                        .segment = static_cast<int8_t>(s)};
      }
      ++count;
    }
  }
  return count;
}

}  // namespace latentd
