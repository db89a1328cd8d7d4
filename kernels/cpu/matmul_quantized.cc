// Products with quantised weights. One input row reads every weight byte once and is bound by
// memory: 320 bytes for 512 products of Q4_1. From about 8 rows on the int8 dot products bound it:
// a block of 32 values of 16 output rows costs, besides its 8 dot products per input row, 4
// operations per input row to scale the integer sums, and the unpacking of its codes, which up to 8
// input rows share.
//
// Measured with Q4_1 on one thread of Sapphire Rapids (2 hardware threads: int8 peak 370 GMAC/s,
// read 78 GB/s) beside other work: one row 55 GB/s from L2 and 28 GB/s from beyond; 8 and more rows
// 190 GMAC/s.

#include "base/check.h"
#include "kernels/cpu/matmul_panel.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/matmul_quantized.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"
#include "kernels/cpu/int8_dot-inl.h"

// Facts of the formats, the same for each target.
#ifndef LATENTD_MATMUL_QUANTIZED_FORMATS
#define LATENTD_MATMUL_QUANTIZED_FORMATS
namespace latentd {

// How a code becomes a value; see packed_weight.h.
enum class ScaleForm { kZero, kMinimum, kSuperMinimum, kSuperSigned };

template <int kBitsIn, ScaleForm kFormIn>
struct CodeFormat {
  static constexpr int kBits = kBitsIn;
  static constexpr ScaleForm kForm = kFormIn;
  static constexpr bool kHasMinimum =
      kForm == ScaleForm::kMinimum || kForm == ScaleForm::kSuperMinimum;
  static constexpr int kZeroShift = kBits - 1;  // zero is half of the codes' range
};

}  // namespace latentd
#endif

HWY_BEFORE_NAMESPACE();
namespace latentd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using DF = hn::CappedTag<float, kPanelRows>;
using DI = hn::RebindToSigned<DF>;
using DU8 = hn::Repartition<uint8_t, DF>;
using DU16 = hn::Repartition<uint16_t, DF>;
using VF = hn::Vec<DF>;
using VI = hn::Vec<DI>;
using VU8 = hn::Vec<DU8>;
constexpr int kLanes = hn::MaxLanes(DF());
constexpr int kQuads = kBlockValues / 4;

// Input rows that share the unpacked codes: as many as the registers hold. One where vectors are
// emulated.
constexpr int kMaxRows = kLanes == kPanelRows ? 8 : kLanes == kPanelRows / 2 ? 4 : 1;

// Shifts that may cross bytes: the caller masks what comes from the neighbour.
template <int kCount>
HWY_INLINE VU8 ShiftCodes(VU8 v) {
  const DU16 d16;
  const auto words = hn::BitCast(d16, v);
  if constexpr (kCount > 0) return hn::BitCast(DU8(), hn::ShiftLeft<kCount>(words));
  if constexpr (kCount < 0) return hn::BitCast(DU8(), hn::ShiftRight<-kCount>(words));
  return v;
}

template <int kBits, int kQuad>
HWY_INLINE void AddHighBits(const uint8_t* block, VU8* codes) {
  const DU8 d8;
  if constexpr (kBits == 5) {
    const VU8 plane = hn::LoadU(d8, block + 256);
    codes[kQuad] = hn::Or(codes[kQuad], hn::And(ShiftCodes<4 - kQuad>(plane), hn::Set(d8, 0x10)));
  } else {
    const VU8 plane = hn::LoadU(d8, block + 256 + 64 * (kQuad / 4));
    codes[kQuad] =
        hn::Or(codes[kQuad], hn::And(ShiftCodes<4 - 2 * (kQuad % 4)>(plane), hn::Set(d8, 0x30)));
  }
}

// The codes of one block, one vector for each quad. `block` includes the offset of the first lane.
template <int kBits>
HWY_INLINE void LoadCodes(const uint8_t* block, VU8* codes) {
  const DU8 d8;
  if constexpr (kBits == 8) {
    for (int q = 0; q < kQuads; ++q) codes[q] = hn::LoadU(d8, block + 64 * q);
    return;
  }
  const VU8 nibble = hn::Set(d8, 0x0f);
  for (int i = 0; i < kQuads / 2; ++i) {
    const VU8 bytes = hn::LoadU(d8, block + 64 * i);
    codes[i] = hn::And(bytes, nibble);
    codes[i + 4] = hn::And(ShiftCodes<-4>(bytes), nibble);
  }
  if constexpr (kBits == 5 || kBits == 6) {
    AddHighBits<kBits, 0>(block, codes);
    AddHighBits<kBits, 1>(block, codes);
    AddHighBits<kBits, 2>(block, codes);
    AddHighBits<kBits, 3>(block, codes);
    AddHighBits<kBits, 4>(block, codes);
    AddHighBits<kBits, 5>(block, codes);
    AddHighBits<kBits, 6>(block, codes);
    AddHighBits<kBits, 7>(block, codes);
  }
}

HWY_INLINE VF LoadHalf(const uint8_t* p) {
  const hn::Rebind<hwy::float16_t, DF> dh;
  return hn::PromoteTo(DF(), hn::LoadU(dh, reinterpret_cast<const hwy::float16_t*>(p)));
}

template <typename T>
HWY_INLINE VF LoadByte(const uint8_t* p) {
  const hn::Rebind<T, DF> db;
  return hn::ConvertTo(DF(), hn::PromoteTo(DI(), hn::LoadU(db, reinterpret_cast<const T*>(p))));
}

// The scales of the lanes from `lane` on, block after block.
template <class Format>
struct ScaleReader {
  VF d[2];  // d[1]: of the last 16 values (kSuperSigned)
  VF m;
  VF super_d, super_m;

  HWY_INLINE void Read(const uint8_t* scales, int64_t b, int lane) {
    if constexpr (Format::kForm == ScaleForm::kZero) {
      d[0] = LoadHalf(scales + b * 32 + 2 * lane);
    } else if constexpr (Format::kForm == ScaleForm::kMinimum) {
      d[0] = LoadHalf(scales + b * 64 + 2 * lane);
      m = LoadHalf(scales + b * 64 + 32 + 2 * lane);
    } else if constexpr (Format::kForm == ScaleForm::kSuperMinimum) {
      const uint8_t* super = scales + b / kSuperBlocks * kSuperScaleBytes;
      if (b % kSuperBlocks == 0) {
        super_d = LoadHalf(super + 2 * lane);
        super_m = hn::Neg(LoadHalf(super + 32 + 2 * lane));
      }
      const uint8_t* block = super + 64 + b % kSuperBlocks * 32 + lane;
      d[0] = hn::Mul(super_d, LoadByte<uint8_t>(block));
      m = hn::Mul(super_m, LoadByte<uint8_t>(block + 16));
    } else {
      const uint8_t* super = scales + b / kSuperBlocks * kSuperScaleBytesQ6;
      if (b % kSuperBlocks == 0) super_d = LoadHalf(super + 2 * lane);
      const uint8_t* block = super + 32 + b % kSuperBlocks * 32 + lane;
      d[0] = hn::Mul(super_d, LoadByte<int8_t>(block));
      d[1] = hn::Mul(super_d, LoadByte<int8_t>(block + 16));
    }
  }
};

// acc + one block of one input row.
template <class Format>
HWY_INLINE VF AddBlock(VF acc, const VU8* codes, const ScaleReader<Format>& scale,
                       const ActivationBlock& in) {
  const DF df;
  const DI di;
  const VF in_scale = hn::Set(df, in.scale);
  // Two chains: the integer sums are exact in any order.
  VI dot0, dot1;
  if constexpr (Format::kForm == ScaleForm::kSuperSigned) {
    dot0 = hn::ShiftLeft<Format::kZeroShift>(hn::Set(di, in.minus_half_sum[0]));
    dot1 = hn::ShiftLeft<Format::kZeroShift>(hn::Set(di, in.minus_half_sum[1]));
  } else if constexpr (Format::kForm == ScaleForm::kZero) {
    dot0 = hn::ShiftLeft<Format::kZeroShift>(hn::Set(di, in.minus_sum));
    dot1 = hn::Zero(di);
  } else {
    dot0 = hn::Zero(di);
    dot1 = hn::Zero(di);
  }
  dot0 = DotQuad(dot0, codes[0], in.codes);
  dot1 = DotQuad(dot1, codes[4], in.codes + 16);
  dot0 = DotQuad(dot0, codes[1], in.codes + 4);
  dot1 = DotQuad(dot1, codes[5], in.codes + 20);
  dot0 = DotQuad(dot0, codes[2], in.codes + 8);
  dot1 = DotQuad(dot1, codes[6], in.codes + 24);
  dot0 = DotQuad(dot0, codes[3], in.codes + 12);
  dot1 = DotQuad(dot1, codes[7], in.codes + 28);
  if constexpr (Format::kForm == ScaleForm::kSuperSigned) {
    acc = hn::MulAdd(hn::Mul(scale.d[0], in_scale), hn::ConvertTo(df, dot0), acc);
    return hn::MulAdd(hn::Mul(scale.d[1], in_scale), hn::ConvertTo(df, dot1), acc);
  }
  const VF dot = hn::ConvertTo(df, hn::Add(dot0, dot1));
  acc = hn::MulAdd(hn::Mul(scale.d[0], in_scale), dot, acc);
  if constexpr (Format::kHasMinimum) acc = hn::MulAdd(scale.m, hn::Set(df, in.scaled_sum), acc);
  return acc;
}

// 16 values of each of kRows input rows.
template <class Format, int kRows>
HWY_NOINLINE void Tile(const uint8_t* panel, const PanelLayout& layout, const ActivationBlock* in,
                       float* HWY_RESTRICT out, int64_t out_stride) {
  const DF df;
  const int64_t blocks = layout.blocks;
  for (int lane = 0; lane < kPanelRows; lane += kLanes) {
    const uint8_t* codes_of_block = panel + 4 * lane;
    VF acc[kRows];
    for (int r = 0; r < kRows; ++r) acc[r] = hn::Zero(df);
    ScaleReader<Format> scale;
    for (int64_t b = 0; b < blocks; ++b) {
      VU8 codes[kQuads];
      LoadCodes<Format::kBits>(codes_of_block, codes);
      scale.Read(panel + layout.scale_offset, b, lane);
      for (int r = 0; r < kRows; ++r) {
        acc[r] = AddBlock<Format>(acc[r], codes, scale, in[r * blocks + b]);
      }
      codes_of_block += layout.code_bytes;
    }
    for (int r = 0; r < kRows; ++r) hn::StoreU(acc[r], df, out + r * out_stride + lane);
  }
}

// Tiles of kRows input rows while there are as many; moves `in`, `rows` and `out` on.
template <class Format, int kRows>
HWY_INLINE void Tiles(const uint8_t* panel, const PanelLayout& layout, const ActivationBlock*& in,
                      int64_t& rows, float*& out, int64_t out_stride) {
  for (; rows >= kRows; rows -= kRows) {
    Tile<Format, kRows>(panel, layout, in, out, out_stride);
    in += kRows * layout.blocks;
    out += kRows * out_stride;
  }
}

template <class Format>
void Panel(const uint8_t* panel, const PanelLayout& layout, const ActivationBlock* in, int64_t rows,
           float* out, int64_t out_stride) {
  Tiles<Format, kMaxRows>(panel, layout, in, rows, out, out_stride);
  if constexpr (kMaxRows > 4) {
    Tiles<Format, 4>(panel, layout, in, rows, out, out_stride);
    Tiles<Format, 2>(panel, layout, in, rows, out, out_stride);
  }
  Tiles<Format, 1>(panel, layout, in, rows, out, out_stride);
}

void PanelOf(DType dtype, const uint8_t* panel, const PanelLayout& layout,
             const ActivationBlock* in, int64_t rows, float* out, int64_t out_stride) {
  switch (dtype) {
    case DType::kQ4_0:
      return Panel<CodeFormat<4, ScaleForm::kZero>>(panel, layout, in, rows, out, out_stride);
    case DType::kQ4_1:
      return Panel<CodeFormat<4, ScaleForm::kMinimum>>(panel, layout, in, rows, out, out_stride);
    case DType::kQ5_0:
      return Panel<CodeFormat<5, ScaleForm::kZero>>(panel, layout, in, rows, out, out_stride);
    case DType::kQ5_1:
      return Panel<CodeFormat<5, ScaleForm::kMinimum>>(panel, layout, in, rows, out, out_stride);
    case DType::kQ8_0:
      return Panel<CodeFormat<8, ScaleForm::kZero>>(panel, layout, in, rows, out, out_stride);
    case DType::kQ4_K:
      return Panel<CodeFormat<4, ScaleForm::kSuperMinimum>>(panel, layout, in, rows, out,
                                                            out_stride);
    case DType::kQ5_K:
      return Panel<CodeFormat<5, ScaleForm::kSuperMinimum>>(panel, layout, in, rows, out,
                                                            out_stride);
    case DType::kQ6_K:
      return Panel<CodeFormat<6, ScaleForm::kSuperSigned>>(panel, layout, in, rows, out,
                                                           out_stride);
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      break;
  }
  LATENTD_CHECK(false);
}

}  // namespace HWY_NAMESPACE
}  // namespace latentd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace latentd {

HWY_EXPORT(PanelOf);

void QuantizedPanel(const PackedWeight& weight, int64_t panel, const ActivationBlock* in,
                    int64_t rows, float* out, int64_t out_stride) {
  HWY_DYNAMIC_DISPATCH(PanelOf)
  (weight.dtype(), weight.panel(panel), weight.layout(), in, rows, out, out_stride);
}

}  // namespace latentd
#endif  // HWY_ONCE
