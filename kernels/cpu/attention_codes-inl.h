// What integer products of attention are made of: a page's codes as signed bytes in the order of
// AMX's second operand, and floats as two int8 parts.

#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/cpu/cache_tile-inl.h"

// Per-target include guard, as Highway's own -inl.h files have.
#if defined(LATENTD_KERNELS_CPU_ATTENTION_CODES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LATENTD_KERNELS_CPU_ATTENTION_CODES_INL_H_
#undef LATENTD_KERNELS_CPU_ATTENTION_CODES_INL_H_
#else
#define LATENTD_KERNELS_CPU_ATTENTION_CODES_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace latentd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// ---- Signed codes: value = scale * signed code + offset ----

// 2c - (2^bits - 1) of codes of 4 bits and fewer; c - 128 of 8 bits.
template <class D>
HWY_INLINE hn::Vec<D> SignedCodes(D d, int bits, hn::Vec<D> codes) {
  if (bits == 8) return hn::Sub(codes, hn::Set(d, 128));
  return hn::Sub(hn::Add(codes, codes), hn::Set(d, static_cast<uint8_t>((1 << bits) - 1)));
}

inline void DecodeSignedScales(Codec codec, const uint8_t* stored, float* scale, float* offset) {
  const DF df;
  DecodeScales(codec, stored, scale, offset);
  const int bits = Info(codec).bits;
  // The code whose signed one is 0, and how much of a code a signed one is.
  const VF middle = hn::Set(df, bits == 8 ? 128.0f : 0.5f * static_cast<float>((1 << bits) - 1));
  const VF step = hn::Set(df, bits == 8 ? 1.0f : 0.5f);
  for (int t = 0; t < kBlockTokens; t += kLanes) {
    const VF s = hn::Load(df, scale + t);
    hn::Store(hn::MulAdd(middle, s, hn::Load(df, offset + t)), df, offset + t);
    hn::Store(hn::Mul(step, s), df, scale + t);
  }
}

// words [dims / 4][64 tokens][4 dims], signed, of one kDimMajor segment.
inline void KeyWords(const Segment& segment, const uint8_t* from, uint8_t* words) {
  const DBytes d;
  const int bits = Info(segment.codec).bits;
  UnpackWords(segment, from, words);
  for (int i = 0; i < segment.dims * kBlockTokens; i += hn::Lanes(d)) {
    hn::Store(SignedCodes(d, bits, hn::Load(d, words + i)), d, words + i);
  }
}

// codes [64 tokens][16 dims] -> words [16][16 dims][4 tokens], signed.
inline void TransposeCodes(const uint8_t* codes, int bits, uint8_t* words) {
  const hn::CappedTag<uint8_t, 16> d8;
  const hn::RepartitionToWide<decltype(d8)> d16;
  for (int quad = 0; quad < kBlockTokens / 4; ++quad, codes += 64, words += 64) {
    const auto row0 = hn::LoadU(d8, codes), row1 = hn::LoadU(d8, codes + 16);
    const auto row2 = hn::LoadU(d8, codes + 32), row3 = hn::LoadU(d8, codes + 48);
    const auto low01 = hn::BitCast(d16, hn::InterleaveLower(d8, row0, row1));
    const auto low23 = hn::BitCast(d16, hn::InterleaveLower(d8, row2, row3));
    const auto high01 = hn::BitCast(d16, hn::InterleaveUpper(d8, row0, row1));
    const auto high23 = hn::BitCast(d16, hn::InterleaveUpper(d8, row2, row3));
    const auto store = [&](hn::Vec<decltype(d16)> pairs, int at) HWY_ATTR {
      hn::StoreU(SignedCodes(d8, bits, hn::BitCast(d8, pairs)), d8, words + at);
    };
    store(hn::InterleaveLower(d16, low01, low23), 0);
    store(hn::InterleaveUpper(d16, low01, low23), 16);
    store(hn::InterleaveLower(d16, high01, high23), 32);
    store(hn::InterleaveUpper(d16, high01, high23), 48);
  }
}

#if HWY_TARGET <= HWY_AVX3
// The same straight from the bits: the bytes of four tokens are brought together while they still
// hold several codes.

// Of every 16 bytes, byte 4t + j to 4j + t.
HWY_INLINE hn::Vec<DBytes> TransposeQuads(hn::Vec<DBytes> v) {
  alignas(16) static constexpr uint8_t kOrder[16] = {0, 4, 8,  12, 1, 5, 9,  13,
                                                     2, 6, 10, 14, 3, 7, 11, 15};
  return hn::TableLookupBytes(v, hn::LoadDup128(DBytes(), kOrder));
}

inline void TransposeCodes4(const uint8_t* tile, uint8_t* words) {
  const DBytes d;
  const DU du;
  // First halves of the 8 bytes of tokens 0 to 3, second halves, then of tokens 4 to 7.
  alignas(64) static constexpr uint32_t kHalves[16] = {0, 2,  4,  6,  1, 3,  5,  7,
                                                       8, 10, 12, 14, 9, 11, 13, 15};
  const auto halves = hn::SetTableIndices(du, kHalves);
  for (int i = 0; i < kTileValues / 2; i += 64, words += 128) {
    const auto v = hn::BitCast(du, hn::LoadU(d, tile + i));
    const auto both = TransposeQuads(hn::BitCast(d, hn::TableLookupLanes(v, halves)));
    const auto low = SignedCodes(d, 4, BitsOf<0, 4>(both));
    const auto high = SignedCodes(d, 4, BitsOf<4, 4>(both));
    hn::StoreU(hn::ConcatLowerLower(d, high, low), d, words);
    hn::StoreU(hn::ConcatUpperUpper(d, high, low), d, words + 64);
  }
}

inline void TransposeCodes2(const uint8_t* tile, uint8_t* words) {
  const DBytes d;
  const DU du;
  alignas(64) static constexpr uint32_t kMiddleSwapped[16] = {0, 1, 2, 3, 8,  9,  10, 11,
                                                              4, 5, 6, 7, 12, 13, 14, 15};
  const auto swapped = hn::SetTableIndices(du, kMiddleSwapped);
  const auto swap = [&](hn::Vec<DBytes> v) HWY_ATTR {
    return hn::BitCast(d, hn::TableLookupLanes(hn::BitCast(du, v), swapped));
  };
  for (int i = 0; i < kTileValues / 4; i += 64, words += 256) {
    const auto v = TransposeQuads(hn::LoadU(d, tile + i));
    // Each four dims of four quads of tokens, 16 bytes a quad.
    const auto dims0 = SignedCodes(d, 2, BitsOf<0, 2>(v));
    const auto dims4 = SignedCodes(d, 2, BitsOf<2, 2>(v));
    const auto dims8 = SignedCodes(d, 2, BitsOf<4, 2>(v));
    const auto dims12 = SignedCodes(d, 2, BitsOf<6, 2>(v));
    const auto low01 = swap(hn::ConcatLowerLower(d, dims4, dims0));
    const auto low23 = swap(hn::ConcatUpperUpper(d, dims4, dims0));
    const auto high01 = swap(hn::ConcatLowerLower(d, dims12, dims8));
    const auto high23 = swap(hn::ConcatUpperUpper(d, dims12, dims8));
    hn::StoreU(hn::ConcatLowerLower(d, high01, low01), d, words);
    hn::StoreU(hn::ConcatUpperUpper(d, high01, low01), d, words + 64);
    hn::StoreU(hn::ConcatLowerLower(d, high23, low23), d, words + 128);
    hn::StoreU(hn::ConcatUpperUpper(d, high23, low23), d, words + 192);
  }
}
#else
inline void TransposeCodes4(const uint8_t* tile, uint8_t* words) {
  alignas(64) uint8_t codes[kWordTileBytes];
  UnpackRows4(tile, kBlockTokens, codes);
  TransposeCodes(codes, 4, words);
}
inline void TransposeCodes2(const uint8_t* tile, uint8_t* words) {
  alignas(64) uint8_t codes[kWordTileBytes];
  UnpackRows2(tile, kBlockTokens, codes);
  TransposeCodes(codes, 2, words);
}
#endif

inline void TransposeCodes3(const uint8_t* tile, uint8_t* words) {
  alignas(64) uint8_t codes[kWordTileBytes];
  UnpackRows3(tile, kBlockTokens, codes);
  TransposeCodes(codes, 3, words);
}

// words [dims / 16][16][16 dims][4 tokens], signed, of one kTokenMajor segment.
inline void ValueWords(const Segment& segment, const uint8_t* from, uint8_t* words) {
  const int bits = Info(segment.codec).bits;
  for (int dim = 0; dim < segment.dims; dim += kTileDims) {
    if (bits == 8) TransposeCodes(from, bits, words);
    if (bits == 4) TransposeCodes4(from, words);
    if (bits == 3) TransposeCodes3(from, words);
    if (bits == 2) TransposeCodes2(from, words);
    from += TileBytes(segment.codec);
    words += kWordTileBytes;
  }
}

// ---- Floats as two int8 parts: x ~ scale * (high + low / kPartRatio) ----

struct PartScale {
  float scale = 0.0f;
  float inverse = 0.0f;
};

// For numbers of at most `largest`.
HWY_INLINE PartScale ScaleOfParts(float largest) {
  constexpr float kLeast = 1e-30f;  // whose inverse is still finite
  if (largest <= kLeast) return {};
  // A NaN goes to the scale alone.
  return {.scale = largest / kMaxFactor, .inverse = largest > 0.0f ? kMaxFactor / largest : 0.0f};
}

// The low bytes. (Highway 1.0.3's TruncateTo is wrong for this pair of types on AVX3_DL.)
HWY_INLINE void StoreLowBytes(VF bits, int8_t* to) {
  const DByte d8;
  const auto low = hn::And(hn::BitCast(DI(), bits), hn::Set(DI(), 0xff));
  hn::StoreU(hn::DemoteTo(d8, low), d8, reinterpret_cast<uint8_t*>(to));
}

HWY_INLINE void StoreParts(VF x, PartScale scale, int8_t* high, int8_t* low) {
  const DF df;
  // So large that its last bit is worth 1: the sum's low byte is the rounded number.
  const VF rounder = hn::Set(df, 12582912.0f);
  const VF scaled = hn::Mul(x, hn::Set(df, scale.inverse));
  const VF rounded = hn::Add(scaled, rounder);
  const VF rest = hn::Sub(scaled, hn::Sub(rounded, rounder));
  StoreLowBytes(rounded, high);
  StoreLowBytes(hn::MulAdd(rest, hn::Set(df, 1.0f * kPartRatio), rounder), low);
}

// high + low / kPartRatio of products.
HWY_INLINE VF SumOfParts(const int32_t* high, const int32_t* low) {
  const DF df;
  const DI di;
  return hn::MulAdd(hn::ConvertTo(df, hn::Load(di, low)), hn::Set(df, 1.0f / kPartRatio),
                    hn::ConvertTo(df, hn::Load(di, high)));
}

}  // namespace HWY_NAMESPACE
}  // namespace latentd
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
