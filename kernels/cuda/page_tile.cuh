#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/cache_tile.cuh"

namespace latentd {

// Cached latents of a page as the tensor cores take them: [64 tokens][dims] halves in shared
// memory. A thread decodes the 16 dims of one token in one tile; neighbouring threads have
// neighbouring tokens. Codes become halves without a conversion: the bits of 1024 + c are 0x6400 +
// c.

__device__ inline __half2 AsHalves(uint32_t bits) { return *reinterpret_cast<__half2*>(&bits); }
__device__ inline uint32_t AsBits(__half2 halves) { return *reinterpret_cast<uint32_t*>(&halves); }
__device__ inline uint32_t TwoHalves(float low, float high) {
  return AsBits(__floats2half2_rn(low, high));
}

// Bit j of the low four as bit 0 of byte j.
__device__ inline uint32_t BitsToBytes(uint32_t four) { return four * 0x00204081u & 0x01010101u; }

// quads[q]: the codes of dims 4q .. 4q + 3 of one token in one tile, a byte each.
template <TileOrder kOrder>
__device__ inline void CodesOf(int bits, const uint8_t* tile, int token, uint32_t* quads) {
  constexpr bool kDims = kOrder == TileOrder::kDimMajor;
  const auto* words = reinterpret_cast<const uint32_t*>(tile);
  if (bits == 8) {
    for (int q = 0; q < 4; ++q) quads[q] = words[kDims ? q * kBlockTokens + token : token * 4 + q];
    return;
  }
  if (bits == 4) {
    for (int w = 0; w < 2; ++w) {
      const uint32_t word = words[kDims ? w * kBlockTokens + token : token * 2 + w];
      quads[w] = word & 0x0f0f0f0fu;
      quads[2 + w] = word >> 4 & 0x0f0f0f0fu;
    }
    return;
  }
  const uint32_t low = words[token];
  for (int q = 0; q < 4; ++q) quads[q] = low >> 2 * q & 0x03030303u;
  if (bits == 2) return;
  const uint32_t high = reinterpret_cast<const uint16_t*>(tile + 4 * kBlockTokens)[token];
  for (int q = 0; q < 4; ++q) {
    // Of dim 4q + j the bit 4j + q, or 4q + j.
    const uint32_t every = high >> q & 0x1111u;
    const uint32_t four =
        kDims ? (every | every >> 3 | every >> 6 | every >> 9) & 15 : high >> 4 * q & 15;
    quads[q] |= BitsToBytes(four) << 2;
  }
}

// What turns codes into values: scale (2 c - top) of symmetric grids, scale c + zero of min-max.
struct CodeScales {
  __half2 scale, zero;
  bool min_max, finite;
};
__device__ inline CodeScales ScalesAt(const SegmentView& s, const uint8_t* head, int token) {
  const auto* scales = reinterpret_cast<const __half*>(head + s.scale_offset);
  CodeScales at{.min_max = IsMinMax(s.codec)};
  at.scale = __half2half2(at.min_max ? scales[token] : __hmul(scales[token], __float2half(0.5f)));
  at.zero = at.min_max ? __half2half2(scales[kBlockTokens + token]) : __float2half2_rn(0.0f);
  at.finite = fabsf(__low2float(at.scale)) < INFINITY && fabsf(__low2float(at.zero)) < INFINITY;
  return at;
}

__device__ inline uint32_t ValuesOf(uint32_t biased, const CodeScales& scales, __half2 top) {
  const __half2 code = __hsub2(AsHalves(biased), __float2half2_rn(1024.0f));
  if (scales.min_max) return AsBits(__hfma2(code, scales.scale, scales.zero));
  return AsBits(__hmul2(__hfma2(code, __float2half2_rn(2.0f), top), scales.scale));
}

// The 16 values of one token in one tile, as pairs of halves. Whether all of them are finite.
template <TileOrder kOrder>
__device__ inline bool DecodeTile(const SegmentView& s, const uint8_t* head, int tile, int token,
                                  uint32_t* out) {
  constexpr bool kDims = kOrder == TileOrder::kDimMajor;
  const int bits = BitsOf(s.codec);
  const uint8_t* at = head + s.offset + tile * (kTileDims * kBlockTokens * bits / 8);
  if (!IsScaled(s.codec)) {
    float faults = 0.0f;
    for (int d = 0; d < 16; d += 2) {
      float x[2];
      for (int i = 0; i < 2; ++i) {
        const int index = kDims ? (d + i) * kBlockTokens + token : token * kTileDims + d + i;
        x[i] = bits == 32 ? reinterpret_cast<const float*>(at)[index] : HalfAt(at + 2 * index);
        faults += fabsf(x[i]) <= 65504.0f ? 0.0f : 1.0f;
      }
      out[d / 2] = TwoHalves(x[0], x[1]);
    }
    return faults == 0.0f;
  }
  uint32_t quads[4];
  CodesOf<kOrder>(bits, at, token, quads);
  const CodeScales scales = ScalesAt(s, head, token);
  const __half2 top = __float2half2_rn(-static_cast<float>((1 << bits) - 1));
  for (int q = 0; q < 4; ++q) {
    out[2 * q] = ValuesOf(__byte_perm(quads[q], 0x64646464u, 0x4140), scales, top);
    out[2 * q + 1] = ValuesOf(__byte_perm(quads[q], 0x64646464u, 0x4342), scales, top);
  }
  return scales.finite;
}

// Whole tiles of halves, 16 bytes at a time: keys, [dims][64 tokens], turned over.
template <int kThreads>
__device__ inline void CopyKeyHalves(const uint8_t* tiles, int dims, int stride, __half* rows) {
#pragma unroll 4
  for (int unit = threadIdx.x; unit < dims * kBlockTokens / 8; unit += kThreads) {
    const int dim = unit % dims, token = unit / dims * 8;
    const uint4 eight = *reinterpret_cast<const uint4*>(tiles + 2 * (dim * kBlockTokens + token));
    const uint32_t words[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      rows[(token + i) * stride + dim] = __ushort_as_half(words[i / 2] >> 16 * (i % 2) & 0xFFFFu);
    }
  }
}

__device__ inline bool IsFinite(uint32_t two_halves) {
  return (two_halves & 0x7C00u) != 0x7C00u && (two_halves & 0x7C000000u) != 0x7C000000u;
}
// Values, [64 tokens][16 dims] a tile; `last` and `bad` as DecodePage has them.
template <int kThreads>
__device__ inline void CopyValueHalves(const uint8_t* tiles, int dims, int last, int stride,
                                       __half* rows, int* bad) {
#pragma unroll 4
  for (int unit = threadIdx.x; unit < dims * kBlockTokens / 8; unit += kThreads) {
    const int token = unit / 2 % kBlockTokens, tile = unit / (2 * kBlockTokens);
    uint4 eight = {0, 0, 0, 0};
    if (token <= last) eight = reinterpret_cast<const uint4*>(tiles)[unit];
    if (!(IsFinite(eight.x) && IsFinite(eight.y) && IsFinite(eight.z) && IsFinite(eight.w))) {
      bad[token] = 1;
      eight = {0, 0, 0, 0};
    }
    *reinterpret_cast<uint4*>(rows + token * stride + tile * kTileDims + unit % 2 * 8) = eight;
  }
}

// Decodes all dims of a page's latent head to rows of `stride` halves. With `bad` tokens after
// `last` become 0, and so do tokens with a value that is not finite, which it marks.
template <int kThreads, TileOrder kOrder>
__device__ inline void DecodePage(const PlaneView& plane, const uint8_t* head, int last, int stride,
                                  __half* rows, int* bad) {
  for (int s = 0; s < plane.num_segments; ++s) {
    const SegmentView& segment = plane.segments[s];
    if (segment.codec == Codec::kF16) {
      const uint8_t* tiles = head + segment.offset;
      if constexpr (kOrder == TileOrder::kDimMajor) {
        CopyKeyHalves<kThreads>(tiles, segment.dims, stride, rows + segment.first_dim);
      } else {
        CopyValueHalves<kThreads>(tiles, segment.dims, last, stride, rows + segment.first_dim, bad);
      }
      continue;
    }
    const int units = segment.dims / kTileDims * kBlockTokens;
    for (int unit = threadIdx.x; unit < units; unit += kThreads) {
      const int token = unit % kBlockTokens, tile = unit / kBlockTokens;
      uint32_t values[8] = {};
      if (bad == nullptr) {
        DecodeTile<kOrder>(segment, head, tile, token, values);
      } else if (token <= last && !DecodeTile<kOrder>(segment, head, tile, token, values)) {
        bad[token] = 1;
        for (uint32_t& two : values) two = 0;
      }
      auto* to =
          reinterpret_cast<uint4*>(rows + token * stride + segment.first_dim + tile * kTileDims);
      to[0] = {values[0], values[1], values[2], values[3]};
      to[1] = {values[4], values[5], values[6], values[7]};
    }
  }
}

}  // namespace latentd
