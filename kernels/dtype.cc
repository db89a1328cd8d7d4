#include "kernels/dtype.h"

#include <cstring>

#include "base/check.h"

namespace latentd {
namespace {

float HalfAt(const uint8_t* p) {
  uint16_t bits;
  std::memcpy(&bits, p, sizeof(bits));
  return HalfToFloat(bits);
}

// The blocks of 32: two nibbles a byte, value j in the low nibble of byte j, value 16 + j in its
// high one. The fifth bits of Q5 are one little-endian word, bit j for value j.

// fp16 d | 16 bytes: d * (q - 8)
void DequantizeQ4_0(const uint8_t* block, float* out) {
  const float d = HalfAt(block);
  const uint8_t* q = block + 2;
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>((q[j] & 15) - 8);
    out[16 + j] = d * static_cast<float>((q[j] >> 4) - 8);
  }
}

// fp16 d | fp16 m | 16 bytes: d * q + m
void DequantizeQ4_1(const uint8_t* block, float* out) {
  const float d = HalfAt(block);
  const float m = HalfAt(block + 2);
  const uint8_t* q = block + 4;
  for (int j = 0; j < 16; ++j) {
    out[j] = d * static_cast<float>(q[j] & 15) + m;
    out[16 + j] = d * static_cast<float>(q[j] >> 4) + m;
  }
}

// The 5-bit code of value i, given the word of fifth bits and the nibbles.
int FiveBits(uint32_t fifth, const uint8_t* q, int i) {
  const int low = i < 16 ? q[i] & 15 : q[i - 16] >> 4;
  return low | static_cast<int>((fifth >> i) & 1) << 4;
}

// fp16 d | 4 bytes of fifth bits | 16 bytes: d * (q - 16)
void DequantizeQ5_0(const uint8_t* block, float* out) {
  const float d = HalfAt(block);
  uint32_t fifth;
  std::memcpy(&fifth, block + 2, sizeof(fifth));
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(FiveBits(fifth, block + 6, i) - 16);
}

// fp16 d | fp16 m | 4 bytes of fifth bits | 16 bytes: d * q + m
void DequantizeQ5_1(const uint8_t* block, float* out) {
  const float d = HalfAt(block);
  const float m = HalfAt(block + 2);
  uint32_t fifth;
  std::memcpy(&fifth, block + 4, sizeof(fifth));
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(FiveBits(fifth, block + 8, i)) + m;
}

// fp16 d | 32 signed bytes: d * q
void DequantizeQ8_0(const uint8_t* block, float* out) {
  const float d = HalfAt(block);
  for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(static_cast<int8_t>(block[2 + i]));
}

// Scale and minimum of sub-block j (0..7) of a Q4_K or Q5_K block, 6 bits each, from 12 bytes:
//   bytes 0..3   scale j, j < 4, in bits 0-5; the top two bits of scale j + 4 in bits 6-7
//   bytes 4..7   the same for the minima
//   bytes 8..11  the low four bits of scale j + 4 (low nibble) and of minimum j + 4 (high nibble)
struct SubBlockScale {
  int scale;
  int min;
};
SubBlockScale SubBlockScaleOf(const uint8_t* packed, int j) {
  if (j < 4) return {packed[j] & 63, packed[4 + j] & 63};
  const int low = packed[4 + j];
  return {(low & 15) | (packed[j - 4] >> 6) << 4, (low >> 4) | (packed[j] >> 6) << 4};
}

// fp16 d | fp16 dmin | 12 bytes of scales | 128 bytes: sub-blocks 2i (low nibbles) and 2i + 1 (high
// nibbles) share 32 bytes. value = d * scale * q - dmin * min
void DequantizeQ4_K(const uint8_t* block, float* out) {
  const float d = HalfAt(block);
  const float dmin = HalfAt(block + 2);
  for (int j = 0; j < 8; ++j) {
    const SubBlockScale s = SubBlockScaleOf(block + 4, j);
    const float scale = d * static_cast<float>(s.scale);
    const float min = dmin * static_cast<float>(s.min);
    const uint8_t* q = block + 16 + (j / 2) * 32;
    const int shift = 4 * (j % 2);
    for (int i = 0; i < 32; ++i) {
      out[32 * j + i] = scale * static_cast<float>((q[i] >> shift) & 15) - min;
    }
  }
}

// As Q4_K with 32 bytes of fifth bits before the nibbles: bit j of byte i is that of value i of
// sub-block j.
void DequantizeQ5_K(const uint8_t* block, float* out) {
  const float d = HalfAt(block);
  const float dmin = HalfAt(block + 2);
  const uint8_t* fifth = block + 16;
  for (int j = 0; j < 8; ++j) {
    const SubBlockScale s = SubBlockScaleOf(block + 4, j);
    const float scale = d * static_cast<float>(s.scale);
    const float min = dmin * static_cast<float>(s.min);
    const uint8_t* q = block + 48 + (j / 2) * 32;
    const int shift = 4 * (j % 2);
    for (int i = 0; i < 32; ++i) {
      const int code = ((q[i] >> shift) & 15) | ((fifth[i] >> j) & 1) << 4;
      out[32 * j + i] = scale * static_cast<float>(code) - min;
    }
  }
}

// 128 bytes of low nibbles | 64 bytes of bit pairs | 16 signed scales (one per 16 values) | fp16 d:
// d * scale * (q - 32). Each half of 128 values has 64 and 32 bytes of its own; its value 32r + i
// takes the nibble r / 2 of byte 32 (r % 2) + i and the bit pair r of byte i.
void DequantizeQ6_K(const uint8_t* block, float* out) {
  const float d = HalfAt(block + 208);
  for (int half = 0; half < 2; ++half) {
    const uint8_t* low = block + 64 * half;
    const uint8_t* high = block + 128 + 32 * half;
    const uint8_t* scales = block + 192 + 8 * half;
    for (int r = 0; r < 4; ++r) {
      for (int i = 0; i < 32; ++i) {
        const int nibble = (low[32 * (r % 2) + i] >> (4 * (r / 2))) & 15;
        const int code = (nibble | ((high[i] >> (2 * r)) & 3) << 4) - 32;
        const float scale = d * static_cast<float>(static_cast<int8_t>(scales[2 * r + i / 16]));
        out[128 * half + 32 * r + i] = scale * static_cast<float>(code);
      }
    }
  }
}

using DequantizeBlock = void (*)(const uint8_t* block, float* out);

DequantizeBlock BlockFunction(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
      return DequantizeQ4_0;
    case DType::kQ4_1:
      return DequantizeQ4_1;
    case DType::kQ5_0:
      return DequantizeQ5_0;
    case DType::kQ5_1:
      return DequantizeQ5_1;
    case DType::kQ8_0:
      return DequantizeQ8_0;
    case DType::kQ4_K:
      return DequantizeQ4_K;
    case DType::kQ5_K:
      return DequantizeQ5_K;
    case DType::kQ6_K:
      return DequantizeQ6_K;
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      break;
  }
  return nullptr;
}

uint32_t BitsOf(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  return bits;
}

float FloatOf(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

}  // namespace

const DTypeInfo& Info(DType dtype) {
  static constexpr DTypeInfo kInfo[] = {
      {"F32", 1, 4},      {"F16", 1, 2},      {"BF16", 1, 2},     {"Q4_0", 32, 18},
      {"Q4_1", 32, 20},   {"Q5_0", 32, 22},   {"Q5_1", 32, 24},   {"Q8_0", 32, 34},
      {"Q4_K", 256, 144}, {"Q5_K", 256, 176}, {"Q6_K", 256, 210},
  };
  return kInfo[static_cast<int>(dtype)];
}

int64_t RowBytes(DType dtype, int64_t cols) {
  const DTypeInfo& info = Info(dtype);
  return cols / info.block_size * info.block_bytes;
}

void DequantizeRow(const TensorView& view, int64_t row, absl::Span<float> out) {
  LATENTD_CHECK(row >= 0 && row < view.rows && static_cast<int64_t>(out.size()) == view.cols);
  const DTypeInfo& info = Info(view.dtype);
  LATENTD_CHECK(view.cols % info.block_size == 0);
  const uint8_t* in = reinterpret_cast<const uint8_t*>(view.row(row));
  switch (view.dtype) {
    case DType::kF32:
      std::memcpy(out.data(), in, out.size() * sizeof(float));
      return;
    case DType::kF16:
      for (size_t i = 0; i < out.size(); ++i) out[i] = HalfAt(in + 2 * i);
      return;
    case DType::kBF16:
      for (size_t i = 0; i < out.size(); ++i) {
        uint16_t bits;
        std::memcpy(&bits, in + 2 * i, sizeof(bits));
        out[i] = BFloat16ToFloat(bits);
      }
      return;
    default:
      break;
  }
  const DequantizeBlock dequantize = BlockFunction(view.dtype);
  for (int64_t i = 0; i < view.cols; i += info.block_size, in += info.block_bytes) {
    dequantize(in, out.data() + i);
  }
}

float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = half & 0x7fff;
  if (magnitude < 0x0400) {  // zero and subnormals: multiples of 2^-24
    return FloatOf(sign | BitsOf(static_cast<float>(magnitude) * 0x1p-24f));
  }
  const uint32_t rebias =
      magnitude < 0x7c00 ? 112u << 23 : 224u << 23;  // infinity and NaN keep exponent 255
  return FloatOf(sign | ((magnitude << 13) + rebias));
}

uint16_t FloatToHalf(float value) {
  const uint32_t bits = BitsOf(value);
  const uint32_t sign = (bits >> 16) & 0x8000;
  const uint32_t magnitude = bits & 0x7fffffff;
  if (magnitude > 0x7f800000)
    return sign | 0x7e00 | ((magnitude >> 13) & 0x03ff);  // NaN, made quiet
  if (magnitude >= 0x477ff000) return sign | 0x7c00;      // from 65520 on the nearest is infinity
  if (magnitude < 0x38800000) {  // below 2^-14: adding 0.5 leaves multiples of 2^-24, rounded to
                                 // even by the adder
    return sign | (BitsOf(FloatOf(magnitude) + 0.5f) - BitsOf(0.5f));
  }
  const uint32_t to_even = 0x0fff + ((magnitude >> 13) & 1);
  return sign | ((magnitude + to_even - (112u << 23)) >> 13);
}

}  // namespace latentd
