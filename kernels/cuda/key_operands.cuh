#pragma once

#include "kernels/cuda/latent_decode.cuh"

namespace latentd {

#ifdef LATENTD_HOPPER

// The latents of K of a page as a warpgroup's left operands: of two neighbouring tokens, which are
// rows lane / 4 and 8 below, so that a thread loads both at once.

// Codes of at most 4 bits of one token: dims 4 half + j and 8 + 4 half + j of a tile in the nibbles
// of byte j.
__device__ inline uint32_t KeyNibbles(const uint8_t* tile, int bits, int token, int half) {
  const auto* words = reinterpret_cast<const uint32_t*>(tile);
  if (bits == 4) return words[half * kBlockTokens + token];
  const uint32_t low = words[token] >> (2 * half) & 0x33333333u;
  if (bits == 2) return low;
  return low | KeyHighBits(reinterpret_cast<const uint16_t*>(tile + 4 * kBlockTokens)[token], half);
}

// The largest multiplier with which the odd integers of a grid fit int8.
__device__ inline int MostMultiplier(int bits) { return bits == 4 ? 8 : bits == 3 ? 18 : 42; }

// Codes of two neighbouring tokens: dims 4 quad + j of a tile in byte j.
template <int kBits>
__device__ inline uint2 KeyBytes(const uint8_t* tile, int token, int quad) {
  if (kBits == 8) return *reinterpret_cast<const uint2*>(tile + (quad * kBlockTokens + token) * 4);
  const int shift = quad / 2 * 4;
  const uint32_t one = KeyNibbles(tile, kBits, token, quad % 2);
  const uint32_t next = KeyNibbles(tile, kBits, token + 1, quad % 2);
  return {one >> shift & 0x0F0F0F0Fu, next >> shift & 0x0F0F0F0Fu};
}

template <FactorKind kKind, int kDims>
struct KeyOperands {
  static constexpr int kSteps = kDims / 32;

  // Of `token` and the next one. `codes`: where the latent head begins.
  __device__ __forceinline__ void Load(const LatentDecodeArguments& p, int token,
                                       const uint8_t* codes) {
    const SegmentView& segment = p.plan.coded.k.segments[0];  // the only one
    const int bits = BitsOf(segment.codec);
    if (bits == 4) {
      LoadFourBits(token, codes);
    } else {
      LoadFewerBits(p, token, codes, bits);
    }
    const auto scales = *reinterpret_cast<const __half2*>(codes + segment.scale_offset + 2 * token);
    const float unit = 0.5f / static_cast<float>(MostMultiplier(bits));
    scale[0] = __low2float(scales) * unit;
    scale[1] = __high2float(scales) * unit;
  }

  uint32_t a[kSteps][4];
  float scale[2];  // of the products of the two tokens

 private:
  // int8 of 4-bit codes c: 8 (2 c - 15). Past the last dim anything will do: its factors are 0.
  __device__ __forceinline__ void LoadFourBits(int token, const uint8_t* codes) {
    constexpr uint32_t kHigh = 0xF0F0F0F0u, kBias = 0x88888888u;
    const uint8_t* at = codes + threadIdx.x % 4 * 256 + token * 4;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const uint2 two = *reinterpret_cast<const uint2*>(at + s * 1024);
      a[s][0] = AndXor(two.x << 4, kHigh, kBias);
      a[s][1] = AndXor(two.y << 4, kHigh, kBias);
      a[s][2] = AndXor(two.x, kHigh, kBias);
      a[s][3] = AndXor(two.y, kHigh, kBias);
    }
  }

  // int8 of 2- and 3-bit codes c: m (2 c - (2^bits - 1)).
  __device__ __forceinline__ void LoadFewerBits(const LatentDecodeArguments& p, int token,
                                                const uint8_t* codes, int bits) {
    const int quad = threadIdx.x % 4;
    const uint32_t m = MostMultiplier(bits), bias = 0x01010101u * (128 - m * ((1u << bits) - 1));
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const KeyTile& tile = p.key_tiles[min(2 * s + quad / 2, p.num_key_tiles - 1)];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t nibbles = KeyNibbles(codes + tile.offset, bits, token + i, quad % 2);
        a[s][i] = ((nibbles & 0x0F0F0F0Fu) * (2 * m) + bias) ^ 0x80808080u;
        a[s][2 + i] = ((nibbles >> 4 & 0x0F0F0F0Fu) * (2 * m) + bias) ^ 0x80808080u;
      }
    }
  }
};

// Halves, of any codec but kF32. Past the last dim they are 0.
template <int kDims>
struct KeyOperands<FactorKind::kFp16, kDims> {
  static constexpr int kSteps = kDims / kTileDims;

  __device__ __forceinline__ void Load(const LatentDecodeArguments& p, int token,
                                       const uint8_t* codes) {
    constexpr int kAtOnce = 4;  // tiles of one segment: without branches their loads overlap
#pragma unroll
    for (int s = 0; s < kSteps; s += kAtOnce) {
      const int last = s + kAtOnce - 1;
      if (last < p.num_key_tiles && p.key_tiles[s].segment == p.key_tiles[last].segment) {
        LoadTiles<kAtOnce>(p, token, codes, s);
        continue;
      }
#pragma unroll
      for (int t = s; t <= last; ++t) {
        if (t < p.num_key_tiles) {
          LoadTiles<1>(p, token, codes, t);
        } else {
          for (uint32_t& two : a[t]) two = 0;
        }
      }
    }
  }

  uint32_t a[kSteps][4];
  const float scale[2] = {1.0f, 1.0f};  // of the products

 private:
  // Of the two tokens.
  struct Scales {
    bool min_max = false;
    __half2 scales[2], offsets[2];
  };

  // `first`: the first of kTiles tiles of one segment.
  template <int kTiles>
  __device__ __forceinline__ void LoadTiles(const LatentDecodeArguments& p, int token,
                                            const uint8_t* codes, int first) {
    const KeyTile& of = p.key_tiles[first];
    const uint8_t* tile = codes + of.offset;
    const int quad = threadIdx.x % 4;
    if (of.bits == 16) {
#pragma unroll
      for (int t = 0; t < kTiles; ++t) {
        LoadHalves(tile + t * (2 * kTileDims * kBlockTokens), token, quad, a[first + t]);
      }
      return;
    }
    const Scales scales = ScalesOf(p.plan.coded.k.segments[of.segment], codes + 2 * token);
    switch (of.bits) {
      case 8:
        return LoadCodes<8, kTiles>(tile, token, quad, scales, first);
      case 4:
        return LoadCodes<4, kTiles>(tile, token, quad, scales, first);
      case 3:
        return LoadCodes<3, kTiles>(tile, token, quad, scales, first);
      default:
        return LoadCodes<2, kTiles>(tile, token, quad, scales, first);
    }
  }
  static __device__ __forceinline__ Scales ScalesOf(const SegmentView& segment, const uint8_t* at) {
    const uint8_t* scales = at + segment.scale_offset;
    const __half2 two = *reinterpret_cast<const __half2*>(scales);
    Scales of{.min_max = IsMinMax(segment.codec)};
    const __half2 offsets = of.min_max
                                ? *reinterpret_cast<const __half2*>(scales + 2 * kBlockTokens)
                                : __hmul2(two, __float2half2_rn(0.5f));
    of.scales[0] = __low2half2(two);
    of.scales[1] = __high2half2(two);
    of.offsets[0] = __low2half2(offsets);
    of.offsets[1] = __high2half2(offsets);
    return of;
  }

  static __device__ __forceinline__ void LoadHalves(const uint8_t* tile, int token, int quad,
                                                    uint32_t (&a)[4]) {
    uint32_t x[4];  // of a dim each
    for (int j = 0; j < 4; ++j) {
      x[j] = *reinterpret_cast<const uint32_t*>(tile + ((4 * quad + j) * kBlockTokens + token) * 2);
    }
    a[0] = __byte_perm(x[0], x[1], 0x5410);
    a[1] = __byte_perm(x[0], x[1], 0x7632);
    a[2] = __byte_perm(x[2], x[3], 0x5410);
    a[3] = __byte_perm(x[2], x[3], 0x7632);
  }

  // A value is scale (c - middle) + offset: exact but for the last sum. The bits of 1024 + c are
  // 0x6400 + c.
  template <int kBits, int kTiles>
  __device__ __forceinline__ void LoadCodes(const uint8_t* tiles, int token, int quad,
                                            const Scales& of, int first) {
    constexpr float kMiddle = 1 << (kBits - 1);
    const __half2 bias = __float2half2_rn(of.min_max ? -1024.0f : -1024.0f - kMiddle);
#pragma unroll
    for (int t = 0; t < kTiles; ++t) {
      const uint2 bytes =
          KeyBytes<kBits>(tiles + t * (kTileDims * kBlockTokens * kBits / 8), token, quad);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t four = i == 0 ? bytes.x : bytes.y;
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          const __half2 code = AsHalves(__byte_perm(four, 0x64646464u, k == 0 ? 0x4140 : 0x4342));
          a[first + t][2 * k + i] =
              AsBits(__hfma2(__hadd2(code, bias), of.scales[i], of.offsets[i]));
        }
      }
    }
  }
};

#endif

}  // namespace latentd
