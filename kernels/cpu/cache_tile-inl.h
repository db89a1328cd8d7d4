// One latent head of one block, from the cache's bytes to what the attention kernels multiply: fp32
// tiles, and codes as 8-bit words for the integer product. The orders are those of
// kernels/cache_layout.h.

#include <cstdint>
#include <cstring>

#include "hwy/highway.h"
#include "kernels/cache_layout.h"

// Per-target include guard, as Highway's own -inl.h files have.
#if defined(LATENTD_KERNELS_CPU_CACHE_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LATENTD_KERNELS_CPU_CACHE_TILE_INL_H_
#undef LATENTD_KERNELS_CPU_CACHE_TILE_INL_H_
#else
#define LATENTD_KERNELS_CPU_CACHE_TILE_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace latentd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, 16>;
using DI = hn::RebindToSigned<DF>;
using DU = hn::RebindToUnsigned<DF>;
using DHalf = hn::Rebind<hwy::float16_t, DF>;
using DByte = hn::Rebind<uint8_t, DF>;  // as many bytes as DF has lanes
using DBytes = hn::Repartition<uint8_t, DF>;
using VF = hn::Vec<DF>;
inline constexpr int kLanes = static_cast<int>(hn::MaxLanes(DF()));
inline constexpr int kTokenVectors = kBlockTokens / kLanes;
inline constexpr int kTileValues = kTileDims * kBlockTokens;
inline constexpr int kWordTileBytes = kTileValues;  // a tile as 8-bit codes

HWY_INLINE VF LoadValues(const float* p) { return hn::LoadU(DF(), p); }
HWY_INLINE VF LoadValues(const hwy::float16_t* p) {
  return hn::PromoteTo(DF(), hn::LoadU(DHalf(), p));
}

inline void HalvesToFloats(const uint8_t* halves, int64_t count, float* out) {
  const auto* from = reinterpret_cast<const hwy::float16_t*>(halves);
  for (int64_t i = 0; i < count; i += kLanes) hn::Store(LoadValues(from + i), DF(), out + i);
}

// scale[64] and offset[64] of a segment: value = scale * code + offset.
inline void DecodeScales(Codec codec, const uint8_t* stored, float* scale, float* offset) {
  HalvesToFloats(stored, kBlockTokens, scale);
  if (Info(codec).scale_bytes == 4) {
    HalvesToFloats(stored + 2 * kBlockTokens, kBlockTokens, offset);
    return;
  }
  const VF middle = hn::Set(DF(), -0.5f * static_cast<float>((1 << Info(codec).bits) - 1));
  for (int t = 0; t < kBlockTokens; t += kLanes) {
    hn::Store(hn::Mul(middle, hn::Load(DF(), scale + t)), DF(), offset + t);
  }
}

// ---- Bits to bytes, one tile ----

// Bits [shift, shift + bits) of every byte.
template <int kShift, int kBits>
HWY_INLINE hn::Vec<DBytes> BitsOf(hn::Vec<DBytes> v) {
  const hn::Repartition<uint16_t, DBytes> d16;
  const DBytes d8;
  const auto shifted = hn::BitCast(d8, hn::ShiftRight<kShift>(hn::BitCast(d16, v)));
  return hn::And(shifted, hn::Set(d8, (1 << kBits) - 1));
}

inline void UnpackWords4(const uint8_t* tile, uint8_t* words) {
  const DBytes d;
  constexpr int kHalf = kWordTileBytes / 2;
  for (int i = 0; i < kHalf; i += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, tile + i);
    hn::Store(BitsOf<0, 4>(v), d, words + i);
    hn::Store(BitsOf<4, 4>(v), d, words + kHalf + i);
  }
}

inline void UnpackWords2(const uint8_t* tile, uint8_t* words) {
  const DBytes d;
  constexpr int kQuarter = kWordTileBytes / 4;
  for (int i = 0; i < kQuarter; i += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, tile + i);
    hn::Store(BitsOf<0, 2>(v), d, words + i);
    hn::Store(BitsOf<2, 2>(v), d, words + kQuarter + i);
    hn::Store(BitsOf<4, 2>(v), d, words + 2 * kQuarter + i);
    hn::Store(BitsOf<6, 2>(v), d, words + 3 * kQuarter + i);
  }
}

// The high bits of quad q, bits 4j + q of each token's 16, to bit 2 of byte j.
template <int kQuad>
HWY_INLINE void AddHighBits(hn::Vec<DU> bits, uint8_t* words) {
  const DU du;
  auto x = hn::And(hn::ShiftRight<kQuad>(bits), hn::Set(du, 0x1111u));
  x = hn::And(hn::Or(x, hn::ShiftLeft<8>(x)), hn::Set(du, 0x00110011u));
  x = hn::And(hn::Or(x, hn::ShiftLeft<4>(x)), hn::Set(du, 0x01010101u));
  auto* to = reinterpret_cast<uint32_t*>(words + kQuad * kBlockTokens * 4);
  hn::Store(hn::Or(hn::Load(du, to), hn::ShiftLeft<2>(x)), du, to);
}

inline void UnpackWords3(const uint8_t* tile, uint8_t* words) {
  UnpackWords2(tile, words);
  const hn::Rebind<uint16_t, DU> d16;
  const auto* high = reinterpret_cast<const uint16_t*>(tile + kTileValues / 4);
  for (int t = 0; t < kBlockTokens; t += kLanes) {
    const auto bits = hn::PromoteTo(DU(), hn::LoadU(d16, high + t));
    AddHighBits<0>(bits, words + 4 * t);
    AddHighBits<1>(bits, words + 4 * t);
    AddHighBits<2>(bits, words + 4 * t);
    AddHighBits<3>(bits, words + 4 * t);
  }
}

// words [dims / 4][64 tokens][4 dims]: the codes of a kDimMajor segment, a byte each.
inline void UnpackWords(const Segment& segment, const uint8_t* from, uint8_t* words) {
  const int bits = Info(segment.codec).bits;
  const int64_t tile_bytes = TileBytes(segment.codec);
  if (bits == 8) {
    std::memcpy(words, from, segment.dims / kTileDims * tile_bytes);
    return;
  }
  for (int dim = 0; dim < segment.dims; dim += kTileDims) {
    if (bits == 4) UnpackWords4(from, words);
    if (bits == 3) UnpackWords3(from, words);
    if (bits == 2) UnpackWords2(from, words);
    from += tile_bytes;
    words += kWordTileBytes;
  }
}

// codes [64 tokens][16 dims] of one kTokenMajor tile, a byte each.
inline void UnpackRows4(const uint8_t* tile, int tokens, uint8_t* codes) {
  const DBytes d;
  const hn::Repartition<uint64_t, DBytes> d64;
  for (int i = 0; i < tokens * 8; i += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, tile + i);
    hn::StoreInterleaved2(hn::BitCast(d64, BitsOf<0, 4>(v)), hn::BitCast(d64, BitsOf<4, 4>(v)), d64,
                          reinterpret_cast<uint64_t*>(codes + 2 * i));
  }
}

inline void UnpackRows2(const uint8_t* tile, int tokens, uint8_t* codes) {
  const DBytes d;
  const hn::Repartition<uint32_t, DBytes> d32;
  for (int i = 0; i < tokens * 4; i += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, tile + i);
    hn::StoreInterleaved4(hn::BitCast(d32, BitsOf<0, 2>(v)), hn::BitCast(d32, BitsOf<2, 2>(v)),
                          hn::BitCast(d32, BitsOf<4, 2>(v)), hn::BitCast(d32, BitsOf<6, 2>(v)), d32,
                          reinterpret_cast<uint32_t*>(codes + 4 * i));
  }
}

inline void UnpackRows3(const uint8_t* tile, int tokens, uint8_t* codes) {
  UnpackRows2(tile, tokens, codes);
  const hn::CappedTag<uint8_t, 16> d;
  const uint8_t* high = tile + kTileValues / 4;
  for (int t = 0; t < tokens; ++t) {
    for (int i = 0; i < kTileDims; i += hn::Lanes(d)) {
      uint8_t bits[8] = {};  // LoadMaskBits reads 8 bytes
      std::memcpy(bits, high + 2 * t + i / 8, 2 - i / 8);
      uint8_t* to = codes + t * kTileDims + i;
      const auto four = hn::IfThenElseZero(hn::LoadMaskBits(d, bits), hn::Set(d, 4));
      hn::Store(hn::Or(hn::Load(d, to), four), d, to);
    }
  }
}

// ---- Tiles of fp32 ----

// out [16 dims][64 tokens] from the words of one tile.
inline void WordsToKeys(const uint8_t* words, const float* scale, const float* offset, float* out) {
  const DF df;
  const DI di;
  const auto byte = hn::Set(di, 0xff);
  for (int quad = 0; quad < kTileDims / 4; ++quad) {
    const auto* from = reinterpret_cast<const int32_t*>(words) + quad * kBlockTokens;
    float* to = out + quad * 4 * kBlockTokens;
    for (int t = 0; t < kBlockTokens; t += kLanes) {
      const auto w = hn::Load(di, from + t);
      const VF s = hn::Load(df, scale + t);
      const VF o = hn::Load(df, offset + t);
      const auto store = [&](int dim, hn::Vec<DI> code) HWY_ATTR {
        hn::Store(hn::MulAdd(s, hn::ConvertTo(df, code), o), df, to + dim * kBlockTokens + t);
      };
      store(0, hn::And(w, byte));
      store(1, hn::And(hn::ShiftRight<8>(w), byte));
      store(2, hn::And(hn::ShiftRight<16>(w), byte));
      store(3, hn::And(hn::ShiftRight<24>(w), byte));
    }
  }
}

// out [dims][64 tokens] of one kDimMajor segment. Lanes of unused tokens may hold anything.
inline void DecodeKeys(const Segment& segment, const uint8_t* from, float* out) {
  const int64_t code_bytes = segment.dims / kTileDims * TileBytes(segment.codec);
  if (segment.codec == Codec::kF32) {
    std::memcpy(out, from, code_bytes);
    return;
  }
  if (segment.codec == Codec::kF16) {
    HalvesToFloats(from, segment.dims * kBlockTokens, out);
    return;
  }
  alignas(64) float scale[kBlockTokens], offset[kBlockTokens];
  alignas(64) uint8_t words[kWordTileBytes];
  DecodeScales(segment.codec, from + code_bytes, scale, offset);
  const Segment tile{.dims = kTileDims, .codec = segment.codec};
  for (int dim = 0; dim < segment.dims; dim += kTileDims) {
    UnpackWords(tile, from, words);
    WordsToKeys(words, scale, offset, out);
    from += TileBytes(segment.codec);
    out += kTileValues;
  }
}

// out [dims / 16][64 tokens][16 dims] of one kTokenMajor segment, tokens [0, tokens).
inline void DecodeValues(const Segment& segment, const uint8_t* from, int tokens, float* out) {
  const DF df;
  const DI di;
  const int bits = Info(segment.codec).bits;
  const int64_t tile_bytes = TileBytes(segment.codec);
  alignas(64) float scale[kBlockTokens], offset[kBlockTokens];
  alignas(64) uint8_t codes[kWordTileBytes];
  if (bits <= 8) {
    DecodeScales(segment.codec, from + segment.dims / kTileDims * tile_bytes, scale, offset);
  }
  for (int dim = 0; dim < segment.dims; dim += kTileDims) {
    if (bits == 32) std::memcpy(out, from, tokens * kTileDims * sizeof(float));
    if (bits == 16) HalvesToFloats(from, tokens * kTileDims, out);
    if (bits == 4) UnpackRows4(from, tokens, codes);
    if (bits == 3) UnpackRows3(from, tokens, codes);
    if (bits == 2) UnpackRows2(from, tokens, codes);
    if (bits <= 8) {
      const uint8_t* rows = bits == 8 ? from : codes;
      for (int t = 0; t < tokens; ++t) {
        const VF s = hn::Set(df, scale[t]);
        const VF o = hn::Set(df, offset[t]);
        for (int i = t * kTileDims; i < (t + 1) * kTileDims; i += kLanes) {
          const auto code = hn::PromoteTo(di, hn::LoadU(DByte(), rows + i));
          hn::Store(hn::MulAdd(s, hn::ConvertTo(df, code), o), df, out + i);
        }
      }
    }
    from += tile_bytes;
    out += kTileValues;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace latentd
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
