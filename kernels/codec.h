#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "absl/types/span.h"

namespace latentd {

// How the values of one cache row segment (one token, `dims` values) are stored.
//
//   kF32, kF16    as they are, no scale.
//   kInt8..kInt2  a symmetric mid-rise grid: value = scale * (code - (2^bits - 1) / 2), code in
//                 [0, 2^bits). One fp16 scale per token and segment. The codes are those of the
//                 scale with the least squared error, the best of several starts; the scale that
//                 is stored is larger, |x|^2 / (x . g) for the row x and its grid values g, so that
//                 the error has no part along x. The least squared error has: it makes every row
//                 smaller (12 % at 2 bits), a bias that sums over tokens keep where independent
//                 errors average out. Twice a grid value is an odd integer, exact in int8 up to 4
//                 bits (and in 9 bits at 8 bits).
//   kMinMax4..2   asymmetric, as Palu (arXiv 2407.21118) stores it: value = scale * code + zero,
//                 with scale = (max - min) / (2^bits - 1) and zero = min. Two fp16 numbers per
//                 token and segment.
enum class Codec : uint8_t { kF32, kF16, kInt8, kInt4, kInt3, kInt2, kMinMax4, kMinMax3, kMinMax2 };

struct CodecInfo {
  const char* name;  // "f32", "f16", "int8", ..., "minmax2"
  int bits;          // of one stored value
  int scale_bytes;   // per token and segment: 0, 2 (scale) or 4 (scale, zero)
};

const CodecInfo& Info(Codec codec);
std::optional<Codec> ParseCodec(std::string_view name);
// The symmetric grid of that many bits; none but for 8, 4, 3 and 2.
std::optional<Codec> GridCodec(int bits);

// Scale and zero of one encoded row, as fp16 bits; zero is 0 where the codec has none.
struct CodeScale {
  uint16_t scale = 0;
  uint16_t zero = 0;
};

// The codes of one row, one per byte, unpacked: codes[i] in [0, 2^bits). Depends on `values` alone,
// and is the same on every machine. Only for codecs with a scale; values.size() == codes.size(), a
// positive multiple of 16. A row with a NaN or an infinity has a scale of NaN, so that it is seen,
// not hidden.
CodeScale EncodeRow(Codec codec, absl::Span<const float> values, absl::Span<uint8_t> codes);

// value = DecodeScale(s) * code + DecodeOffset(s): every scaled codec is affine in its code.
float DecodeScale(Codec codec, CodeScale scale);
float DecodeOffset(Codec codec, CodeScale scale);

}  // namespace latentd
