// Dot products of unsigned 8-bit codes with signed 8-bit values, four to a 32-bit lane: the one
// instruction that Highway 1.0.3 lacks. Exact for every pair of bytes on every target, so the
// targets give the same integers.

#include <cstdint>

#include "hwy/highway.h"

// Per-target include guard, as Highway's own -inl.h files have.
#if defined(LATENTD_KERNELS_CPU_INT8_DOT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef LATENTD_KERNELS_CPU_INT8_DOT_INL_H_
#undef LATENTD_KERNELS_CPU_INT8_DOT_INL_H_
#else
#define LATENTD_KERNELS_CPU_INT8_DOT_INL_H_
#endif

HWY_BEFORE_NAMESPACE();
namespace latentd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

typedef int32_t QuadWord __attribute__((may_alias, aligned(1)));  // four int8 values

// acc + codes . values in each 32-bit lane: DotQuads for two vectors, DotQuad for four values that
// every lane shares. The generic form serves every vector type; the overloads below it are the fast
// ones.
template <class VI32, class VU8, class VI8>
HWY_INLINE VI32 DotQuads(VI32 acc, VU8 codes, VI8 values) {
  const hn::DFromV<VI32> di;
  const hn::RebindToUnsigned<decltype(di)> du;
  const auto c = hn::BitCast(du, codes);
  const auto v = hn::BitCast(di, values);
  const auto byte = hn::Set(du, 0xffu);
  const auto code0 = hn::BitCast(di, hn::And(c, byte));
  const auto code1 = hn::BitCast(di, hn::And(hn::ShiftRight<8>(c), byte));
  const auto code2 = hn::BitCast(di, hn::And(hn::ShiftRight<16>(c), byte));
  const auto code3 = hn::BitCast(di, hn::ShiftRight<24>(c));
  acc = hn::Add(acc, hn::Mul(code0, hn::ShiftRight<24>(hn::ShiftLeft<24>(v))));
  acc = hn::Add(acc, hn::Mul(code1, hn::ShiftRight<24>(hn::ShiftLeft<16>(v))));
  acc = hn::Add(acc, hn::Mul(code2, hn::ShiftRight<24>(hn::ShiftLeft<8>(v))));
  return hn::Add(acc, hn::Mul(code3, hn::ShiftRight<24>(v)));
}

#if HWY_TARGET == HWY_AVX3_DL

// Assembly, not intrinsics: Highway's attribute for this target names avxvnni, under which the
// 512-bit intrinsic does not inline, while its run-time check asks for AVX-512 VNNI.
HWY_INLINE hn::Vec512<int32_t> DotQuads(hn::Vec512<int32_t> acc, hn::Vec512<uint8_t> codes,
                                        hn::Vec512<int8_t> values) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc.raw) : "v"(codes.raw), "v"(values.raw));
  return acc;
}
HWY_INLINE hn::Vec256<int32_t> DotQuads(hn::Vec256<int32_t> acc, hn::Vec256<uint8_t> codes,
                                        hn::Vec256<int8_t> values) {
  asm("vpdpbusd %2, %1, %0" : "+v"(acc.raw) : "v"(codes.raw), "v"(values.raw));
  return acc;
}
HWY_INLINE hn::Vec512<int32_t> DotQuad(hn::Vec512<int32_t> acc, hn::Vec512<uint8_t> codes,
                                       const int8_t* values) {
  asm("vpdpbusd %2%{1to16%}, %1, %0"
      : "+v"(acc.raw)
      : "v"(codes.raw), "m"(*reinterpret_cast<const QuadWord*>(values)));
  return acc;
}

#elif HWY_TARGET == HWY_AVX3

// Pairs of products are summed in 16 bits with saturation. With the code's top bit apart no sum
// leaves them: 2 * 127 * 127 and 2 * 128 * 127 fit; only -128 as a value could not, and quantised
// rows never hold it.
HWY_INLINE hn::Vec512<int32_t> DotQuads(hn::Vec512<int32_t> acc, hn::Vec512<uint8_t> codes,
                                        hn::Vec512<int8_t> values) {
  const __m512i top = _mm512_set1_epi8(static_cast<char>(0x80));
  const __m512i ones = _mm512_set1_epi16(1);
  const __m512i low = _mm512_maddubs_epi16(_mm512_andnot_si512(top, codes.raw), values.raw);
  const __m512i high = _mm512_maddubs_epi16(_mm512_and_si512(top, codes.raw), values.raw);
  acc.raw = _mm512_add_epi32(acc.raw, _mm512_madd_epi16(low, ones));
  acc.raw = _mm512_add_epi32(acc.raw, _mm512_madd_epi16(high, ones));
  return acc;
}

#elif HWY_TARGET == HWY_AVX2

// As for AVX3.
HWY_INLINE hn::Vec256<int32_t> DotQuads(hn::Vec256<int32_t> acc, hn::Vec256<uint8_t> codes,
                                        hn::Vec256<int8_t> values) {
  const __m256i top = _mm256_set1_epi8(static_cast<char>(0x80));
  const __m256i ones = _mm256_set1_epi16(1);
  const __m256i low = _mm256_maddubs_epi16(_mm256_andnot_si256(top, codes.raw), values.raw);
  const __m256i high = _mm256_maddubs_epi16(_mm256_and_si256(top, codes.raw), values.raw);
  acc.raw = _mm256_add_epi32(acc.raw, _mm256_madd_epi16(low, ones));
  acc.raw = _mm256_add_epi32(acc.raw, _mm256_madd_epi16(high, ones));
  return acc;
}

#endif

// The four values at `values` against every lane's four codes.
template <class VI32, class VU8>
HWY_INLINE VI32 DotQuad(VI32 acc, VU8 codes, const int8_t* values) {
  const hn::DFromV<VI32> di;
  const hn::Repartition<int8_t, decltype(di)> d8;
  const auto words = hn::Set(di, *reinterpret_cast<const QuadWord*>(values));
  return DotQuads(acc, codes, hn::BitCast(d8, words));
}

}  // namespace HWY_NAMESPACE
}  // namespace latentd
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
