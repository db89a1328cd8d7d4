#pragma once

#include <cstdint>

#include "kernels/cuda/code_values.cuh"
#include "kernels/cuda/decode_tiles.cuh"
#include "kernels/cuda/mma.cuh"

namespace latentd {

// Keys of 16 tokens and 16 dims in registers: A of a product with queries.
struct KeyLoader {
  const uint8_t* codes;  // of the latent head's stage
  int warp, lane;

  // Of codes, rows lane / 4 and 8 below are neighbouring tokens.
  __device__ __forceinline__ int token() const { return 16 * warp + lane / 4 * 2; }

  template <int kBits>
  __device__ __forceinline__ FragmentA Load(const uint8_t* tile) const {
    const int quad = lane % 4, half = quad / 2;
    const int selector = quad % 2 == 0 ? 0x4140 : 0x4342;
    const auto* words = reinterpret_cast<const uint32_t*>(tile);
    FragmentA a;
    if (kBits == 16) {
      const int dim = lane / 16 * 8 + lane % 8, part = 2 * warp + lane / 8 % 2;
      return LoadTransposed(tile + dim * 2 * kBlockTokens + (part ^ (dim % 8)) * 16);
    }
    if (kBits == 8) {
#pragma unroll
      for (int k = 0; k < 2; ++k) {
        const auto two =
            *reinterpret_cast<const uint2*>(words + (2 * k + half) * kBlockTokens + token());
        a.x[2 * k] = ByteValues(two.x, selector);
        a.x[2 * k + 1] = ByteValues(two.y, selector);
      }
      return a;
    }
    uint2 two;
    if (kBits == 4) {
      two = *reinterpret_cast<const uint2*>(words + half * kBlockTokens + token());
    } else {
      two = *reinterpret_cast<const uint2*>(words + token());
      two.x = two.x >> (2 * half) & 0x33333333u;
      two.y = two.y >> (2 * half) & 0x33333333u;
      if (kBits == 3) {
        const uint32_t high =
            *reinterpret_cast<const uint32_t*>(tile + 4 * kBlockTokens + 2 * token());
        two.x |= KeyHighBits(high & 0xFFFFu, half);
        two.y |= KeyHighBits(high >> 16, half);
      }
    }
    const __half2 middle = NibbleMiddle(kBits);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const uint32_t bytes = __byte_perm(i == 0 ? two.x : two.y, 0, selector);
      a.x[i] = NibbleValues(bytes << 4, middle);
      a.x[2 + i] = NibbleValues(bytes, middle);
    }
    return a;
  }
};

}  // namespace latentd
