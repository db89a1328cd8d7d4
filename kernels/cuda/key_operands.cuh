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

// The int8 numbers of a token's codes of at most 4 bits: byte c is that of code c.
template <int kBits>
struct CodeTable {
  // Code c becomes 2 c - (2^bits - 1) times `unit`, rounded.
  __device__ __forceinline__ void Make(float unit) {
    // Of the numbers up to 2^22 beside 1.5 * 2^23 the low byte is the integer's.
    constexpr float kInteger = 0x1.8p23f;
#pragma unroll
    for (int i = 0; i < kWords; ++i) {
      uint32_t x[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int odd = 2 * (4 * i + j) - ((1 << kBits) - 1);
        x[j] = __float_as_uint(fmaf(static_cast<float>(odd), unit, kInteger));
      }
      words[i] =
          __byte_perm(__byte_perm(x[0], x[1], 0x0040), __byte_perm(x[2], x[3], 0x0040), 0x5410);
    }
  }
  // Of codes in nibbles: of the low ones, byte for byte, and of the high ones.
  __device__ __forceinline__ uint2 Of(uint32_t nibbles) const {
    uint32_t first, second;  // of four nibbles each
    if constexpr (kBits < 4) {
      first = PickBytes(words[0], words[kWords - 1], nibbles);
      second = PickBytes(words[0], words[kWords - 1], nibbles >> 16);
    } else {
      const uint32_t picks = nibbles & 0x77777777u, low = nibbles << 4;
      first = Choose(PickBytes(low, nibbles, 0xD9C8), picks);
      second = Choose(PickBytes(low, nibbles, 0xFBEA), picks >> 16);
    }
    return {PickBytes(first, second, 0x6420), PickBytes(first, second, 0x7531)};
  }

 private:
  static constexpr int kWords = (1 << kBits) / 4;

  // `high`: the bytes whose codes are 8 or more, all bits of them.
  __device__ __forceinline__ uint32_t Choose(uint32_t high, uint32_t picks) const {
    return (PickBytes(words[0], words[1], picks) & ~high) |
           (PickBytes(words[2], words[3], picks) & high);
  }

  uint32_t words[kWords] = {};
};

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

  // Of `token` and the next one, the dims from `first` on, a multiple of 32. `codes`: where the
  // latent head begins.
  __device__ __forceinline__ void Load(const LatentDecodeArguments& p, int token,
                                       const uint8_t* codes, int first = 0) {
    const PlaneView& k = p.plan.coded.k;
    if (k.num_segments == 1 && BitsOf(k.segments[0].codec) == 4) {
      LoadFourBits(token, codes + first * (kBlockTokens / 2));
      const float2 scales = ScalesOf(k.segments[0], token, codes);
      scale[0] = scales.x / 16.0f;
      scale[1] = scales.y / 16.0f;
    } else {
      LoadSegments(p, token, codes, first / 32);
    }
    if (first == 0) return;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {  // past the last dim there may be no factors
      if (first + 32 * s < k.dims) continue;
      for (uint32_t& numbers : a[s]) numbers = 0;
    }
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

  static __device__ __forceinline__ float2 ScalesOf(const SegmentView& segment, int token,
                                                    const uint8_t* codes) {
    return __half22float2(
        *reinterpret_cast<const __half2*>(codes + segment.scale_offset + 2 * token));
  }

  // Values become integers in one unit of the token: those of the segment with the largest exactly,
  // but for 3 bits beside 4, others rounded. Steps of products are each of one segment.
  __device__ __forceinline__ void LoadSegments(const LatentDecodeArguments& p, int token,
                                               const uint8_t* codes, int first_step) {
    const PlaneView& k = p.plan.coded.k;
    float most = 126.0f;            // of 2 and 3 bits a multiple of the largest odd number
    float2 largest = {0.0f, 0.0f};  // twice the largest value
    float2 none = {0.0f, 0.0f};     // or no number, if a scale is none
#pragma unroll 1
    for (int s = 0; s < k.num_segments; ++s) {
      const float2 scales = ScalesOf(k.segments[s], token, codes);
      const int bits = BitsOf(k.segments[s].codec);
      const auto odd = static_cast<float>((1 << bits) - 1);
      if (bits == 4) most = 120.0f;  // of 2 and 4 bits
      largest = {fmaxf(largest.x, odd * scales.x), fmaxf(largest.y, odd * scales.y)};
      none = {none.x + 0.0f * scales.x, none.y + 0.0f * scales.y};
    }
    scale[0] = largest.x / (2.0f * most) + none.x;
    scale[1] = largest.y / (2.0f * most) + none.y;
    const float2 integers = {most / largest.x, most / largest.y};  // that make 1
#pragma unroll 1
    for (int s = 0; s < k.num_segments; ++s) {
      switch (BitsOf(k.segments[s].codec)) {
        case 4:
          LoadSegment<4>(k.segments[s], token, integers, codes, first_step);
          break;
        case 3:
          LoadSegment<3>(k.segments[s], token, integers, codes, first_step);
          break;
        default:
          LoadSegment<2>(k.segments[s], token, integers, codes, first_step);
      }
    }
  }
  template <int kBits>
  __device__ __forceinline__ void LoadSegment(const SegmentView& segment, int token,
                                              const float2& integers, const uint8_t* codes,
                                              int first_step) {
    constexpr int kTileBytes = kTileDims * kBlockTokens * kBits / 8;
    const float2 scales = ScalesOf(segment, token, codes);
    CodeTable<kBits> tables[2];
    tables[0].Make(integers.x * scales.x);
    tables[1].Make(integers.y * scales.y);
    const int quad = threadIdx.x % 4, tiles = segment.dims / kTileDims;
    const int before = first_step - segment.first_dim / 32;  // of the segment's steps
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const int tile = 2 * (before + s);
      if (tile < 0 || tile >= tiles) continue;
      const uint8_t* at = codes + segment.offset + min(tile + quad / 2, tiles - 1) * kTileBytes;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint2 numbers = tables[i].Of(KeyNibbles(at, kBits, token + i, quad % 2));
        a[s][i] = numbers.x;
        a[s][2 + i] = numbers.y;
      }
    }
  }
};

// Halves, of any codec but kF32. Past the last dim they are 0.
template <int kDims>
struct KeyOperands<FactorKind::kFp16, kDims> {
  static constexpr int kSteps = kDims / kTileDims;

  // Of the dims from `first` on.
  __device__ __forceinline__ void Load(const LatentDecodeArguments& p, int token,
                                       const uint8_t* codes, int first = 0) {
    constexpr int kAtOnce = 4;  // tiles of one segment: without branches their loads overlap
    const KeyTile* tiles = p.key_tiles + first / kTileDims;
    const int count = p.num_key_tiles - first / kTileDims;
#pragma unroll
    for (int s = 0; s < kSteps; s += kAtOnce) {
      const int last = s + kAtOnce - 1;
      if (last < count && tiles[s].segment == tiles[last].segment) {
        LoadTiles<kAtOnce>(p, tiles[s], token, codes, s);
        continue;
      }
#pragma unroll
      for (int t = s; t <= last; ++t) {
        if (t < count) {
          LoadTiles<1>(p, tiles[t], token, codes, t);
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

  // kTiles tiles of one segment, of which `of` is the first: to `first` and those after it.
  template <int kTiles>
  __device__ __forceinline__ void LoadTiles(const LatentDecodeArguments& p, const KeyTile& of,
                                            int token, const uint8_t* codes, int first) {
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
