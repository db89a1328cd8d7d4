#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/cache_tile.cuh"

namespace latentd {

// Cached latents of a page as the tensor cores take them: [64 tokens][dims] halves in shared
// memory. A thread decodes the 16 dims of one token in one tile; neighbouring threads have
// neighbouring tokens.

// x[16] = the stored codes or values of one token in one tile.
template <TileOrder kOrder>
__device__ inline void StoredTile(Codec codec, const uint8_t* tile, int token, float* x) {
  constexpr bool kDims = kOrder == TileOrder::kDimMajor;
  switch (BitsOf(codec)) {
    case 32:
      for (int d = 0; d < 16; ++d) {
        x[d] = reinterpret_cast<const float*>(
            tile)[kDims ? d * kBlockTokens + token : token * kTileDims + d];
      }
      return;
    case 16:
      for (int d = 0; d < 16; ++d) {
        x[d] = __half2float(reinterpret_cast<const __half*>(
            tile)[kDims ? d * kBlockTokens + token : token * kTileDims + d]);
      }
      return;
    case 8: {
      const auto* words = reinterpret_cast<const uint32_t*>(tile);
      for (int w = 0; w < 4; ++w) {
        const uint32_t word = words[kDims ? w * kBlockTokens + token : token * 4 + w];
        for (int j = 0; j < 4; ++j) x[4 * w + j] = static_cast<float>(word >> 8 * j & 255);
      }
      return;
    }
    case 4: {
      const auto* words = reinterpret_cast<const uint32_t*>(tile);
      for (int w = 0; w < 2; ++w) {
        const uint32_t word = words[kDims ? w * kBlockTokens + token : token * 2 + w];
        for (int j = 0; j < 4; ++j) {
          x[4 * w + j] = static_cast<float>(word >> 8 * j & 15);
          x[8 + 4 * w + j] = static_cast<float>(word >> (8 * j + 4) & 15);
        }
      }
      return;
    }
    default: {
      const uint32_t low = reinterpret_cast<const uint32_t*>(tile)[token];
      const bool three = BitsOf(codec) == 3;
      const uint32_t high =
          three ? reinterpret_cast<const uint16_t*>(tile + 4 * kBlockTokens)[token] : 0;
      for (int d = 0; d < 16; ++d) {
        const int bit = kDims ? 4 * (d % 4) + d / 4 : d;
        x[d] =
            static_cast<float>((low >> (8 * (d % 4) + 2 * (d / 4)) & 3) | (high >> bit & 1) << 2);
      }
      return;
    }
  }
}

__device__ inline uint32_t TwoHalves(float low, float high) {
  const __half2 both = __floats2half2_rn(low, high);
  return *reinterpret_cast<const uint32_t*>(&both);
}

// Decodes all dims of the page's latent head `head` to rows of `stride` halves. With `bad` tokens
// after `last` become 0, and so do tokens with a value that is not finite, which it marks.
template <int kThreads, TileOrder kOrder>
__device__ inline void DecodePage(const PlaneView& plane, const uint8_t* head, int last, int stride,
                                  __half* rows, int* bad) {
  for (int s = 0; s < plane.num_segments; ++s) {
    const SegmentView& segment = plane.segments[s];
    const int tile_bytes = kTileDims * kBlockTokens * BitsOf(segment.codec) / 8;
    const int units = segment.dims / kTileDims * kBlockTokens;
    for (int unit = threadIdx.x; unit < units; unit += kThreads) {
      const int token = unit % kBlockTokens, tile = unit / kBlockTokens;
      float x[16];
      bool finite = true;
      if (bad != nullptr && token > last) {
        for (float& value : x) value = 0.0f;
      } else {
        const Affine affine = AffineAt(segment, head, token);
        StoredTile<kOrder>(segment.codec, head + segment.offset + tile * tile_bytes, token, x);
        float sum = 0.0f;
        for (float& value : x) {
          value = affine.scale * value + affine.offset;
          sum += fabsf(value) <= 65504.0f ? 0.0f : 1.0f;
        }
        finite = sum == 0.0f;
        if (bad != nullptr && !finite) {
          bad[token] = 1;
          for (float& value : x) value = 0.0f;
        }
      }
      auto* to =
          reinterpret_cast<uint4*>(rows + token * stride + segment.first_dim + tile * kTileDims);
      to[0] = {TwoHalves(x[0], x[1]), TwoHalves(x[2], x[3]), TwoHalves(x[4], x[5]),
               TwoHalves(x[6], x[7])};
      to[1] = {TwoHalves(x[8], x[9]), TwoHalves(x[10], x[11]), TwoHalves(x[12], x[13]),
               TwoHalves(x[14], x[15])};
    }
  }
}

}  // namespace latentd
