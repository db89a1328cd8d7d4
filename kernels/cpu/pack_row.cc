// Encodes a row and puts its bytes into the tiles.

#include "kernels/cpu/pack_row.h"

#include <cstring>

#include "absl/types/span.h"
#include "kernels/codec.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/dtype.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/pack_row.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace latentd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// count is a multiple of 16.
void FloatsToHalves(const float* values, int64_t count, uint16_t* halves) {
#if HWY_TARGET == HWY_EMU128  // whose DemoteTo does not round to nearest
  for (int64_t i = 0; i < count; ++i) halves[i] = FloatToHalf(values[i]);
#else
  const hn::CappedTag<float, 16> df;
  const hn::Rebind<hwy::float16_t, decltype(df)> dh;
  for (int64_t i = 0; i < count; i += hn::Lanes(df)) {
    hn::StoreU(hn::DemoteTo(dh, hn::LoadU(df, values + i)), dh,
               reinterpret_cast<hwy::float16_t*>(halves + i));
  }
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace latentd
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace latentd {
namespace {

HWY_EXPORT(FloatsToHalves);

uint64_t EightCodes(const uint8_t* codes) {
  uint64_t word;
  std::memcpy(&word, codes, sizeof(word));
  return word;
}

uint32_t FourCodes(const uint8_t* codes) {
  uint32_t word;
  std::memcpy(&word, codes, sizeof(word));
  return word;
}

template <typename T>
void Put(T value, uint8_t* to) {
  std::memcpy(to, &value, sizeof(value));
}

// The codes of one token and tile, each a byte, at their places (cache_layout.h draws them).
void PutCodes8(TileOrder order, const uint8_t* codes, int token, uint8_t* tile) {
  if (order == TileOrder::kTokenMajor) {
    std::memcpy(tile + token * kTileDims, codes, kTileDims);
    return;
  }
  for (int quad = 0; quad < 4; ++quad) {
    Put(FourCodes(codes + 4 * quad), tile + (quad * kBlockTokens + token) * 4);
  }
}

void PutCodes4(TileOrder order, const uint8_t* codes, int token, uint8_t* tile) {
  const uint64_t word = EightCodes(codes) | EightCodes(codes + 8) << 4;
  if (order == TileOrder::kTokenMajor) {
    Put(word, tile + token * 8);
    return;
  }
  Put(static_cast<uint32_t>(word), tile + token * 4);
  Put(static_cast<uint32_t>(word >> 32), tile + (kBlockTokens + token) * 4);
}

void PutCodes2(const uint8_t* codes, int token, uint8_t* tile) {
  constexpr uint32_t kLowBits = 0x03030303;
  uint32_t word = 0;
  for (int quad = 0; quad < 4; ++quad) {
    word |= (FourCodes(codes + 4 * quad) & kLowBits) << (2 * quad);
  }
  Put(word, tile + token * 4);
}

void PutCodes3(TileOrder order, const uint8_t* codes, int token, uint8_t* tile) {
  PutCodes2(codes, token, tile);
  uint16_t high = 0;
  for (int dim = 0; dim < kTileDims; ++dim) {
    const int bit = order == TileOrder::kTokenMajor ? dim : 4 * (dim % 4) + dim / 4;
    high = static_cast<uint16_t>(high | (codes[dim] >> 2) << bit);
  }
  Put(high, tile + TileBytes(Codec::kInt2) + token * 2);
}

template <typename T>
void PutWhole(TileOrder order, const T* values, int dims, int token, uint8_t* segment) {
  T* to = reinterpret_cast<T*>(segment);
  if (order == TileOrder::kDimMajor) {
    for (int d = 0; d < dims; ++d) to[d * kBlockTokens + token] = values[d];
    return;
  }
  for (int d = 0; d < dims; d += kTileDims) {
    std::memcpy(to + (d * kBlockTokens + token * kTileDims), values + d, kTileDims * sizeof(T));
  }
}

void PutHalves(TileOrder order, const float* values, int dims, int token, uint8_t* at,
               float* decoded) {
  uint16_t halves[kMaxRowDims];
  PackHalves(values, dims, halves);
  PutWhole(order, halves, dims, token, at);
  for (int d = 0; decoded != nullptr && d < dims; ++d) decoded[d] = HalfToFloat(halves[d]);
}

void PutCodes(const Segment& segment, TileOrder order, const float* values, int token, uint8_t* at,
              float* decoded) {
  const int dims = segment.dims;
  uint8_t codes[kMaxRowDims];
  const CodeScale stored =
      EncodeRow(segment.codec, absl::MakeConstSpan(values, dims), absl::MakeSpan(codes, dims));
  const int bits = Info(segment.codec).bits;
  for (int d = 0; d < dims; d += kTileDims) {
    if (bits == 8) PutCodes8(order, codes + d, token, at);
    if (bits == 4) PutCodes4(order, codes + d, token, at);
    if (bits == 3) PutCodes3(order, codes + d, token, at);
    if (bits == 2) PutCodes2(codes + d, token, at);
    at += TileBytes(segment.codec);
  }
  Put(stored.scale, at + 2 * token);
  if (Info(segment.codec).scale_bytes == 4) Put(stored.zero, at + 2 * (kBlockTokens + token));
  if (decoded == nullptr) return;
  const float scale = DecodeScale(segment.codec, stored);
  const float offset = DecodeOffset(segment.codec, stored);
  for (int d = 0; d < dims; ++d) decoded[d] = scale * static_cast<float>(codes[d]) + offset;
}

}  // namespace

void PackHalves(const float* values, int64_t count, uint16_t* halves) {
  const int64_t whole = count / 16 * 16;
  HWY_DYNAMIC_DISPATCH(FloatsToHalves)(values, whole, halves);
  for (int64_t i = whole; i < count; ++i) halves[i] = FloatToHalf(values[i]);
}

void PackRow(const CachePlane& plane, const float* values, int token, uint8_t* head,
             float* decoded) {
  for (size_t s = 0; s < plane.segments.size(); ++s) {
    const Segment& segment = plane.segments[s];
    uint8_t* at = head + plane.segment_offset(static_cast<int>(s));
    if (segment.codec == Codec::kF32) {
      PutWhole(plane.order, values, segment.dims, token, at);
      if (decoded != nullptr) std::memcpy(decoded, values, segment.dims * sizeof(float));
    } else if (segment.codec == Codec::kF16) {
      PutHalves(plane.order, values, segment.dims, token, at, decoded);
    } else {
      PutCodes(segment, plane.order, values, token, at, decoded);
    }
    values += segment.dims;
    if (decoded != nullptr) decoded += segment.dims;
  }
}

}  // namespace latentd
#endif  // HWY_ONCE
