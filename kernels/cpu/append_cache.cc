// Encodes the step's rows and puts their bytes into the tiles. A token's codes of one tile are a
// few whole bytes, so no two rows share a byte and rows may be written by different threads.

#include <cstdint>
#include <cstring>

#include "absl/types/span.h"
#include "base/check.h"
#include "kernels/codec.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/attention_plan.h"
#include "kernels/dtype.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/append_cache.cc"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace latentd {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// count is a multiple of 16.
void FloatsToHalves(const float* values, int count, uint16_t* halves) {
#if HWY_TARGET == HWY_EMU128  // whose DemoteTo does not round to nearest
  for (int i = 0; i < count; ++i) halves[i] = FloatToHalf(values[i]);
#else
  const hn::CappedTag<float, 16> df;
  const hn::Rebind<hwy::float16_t, decltype(df)> dh;
  for (int i = 0; i < count; i += hn::Lanes(df)) {
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

void PutSegment(const Segment& segment, TileOrder order, const float* values, int token,
                uint8_t* at) {
  const int dims = segment.dims;
  if (segment.codec == Codec::kF32) return PutWhole(order, values, dims, token, at);
  if (segment.codec == Codec::kF16) {
    uint16_t halves[kMaxRowDims];
    HWY_DYNAMIC_DISPATCH(FloatsToHalves)(values, dims, halves);
    return PutWhole(order, halves, dims, token, at);
  }
  uint8_t codes[kMaxRowDims];
  const CodeScale scale =
      EncodeRow(segment.codec, absl::MakeConstSpan(values, dims), absl::MakeSpan(codes, dims));
  const int bits = Info(segment.codec).bits;
  for (int d = 0; d < dims; d += kTileDims) {
    if (bits == 8) PutCodes8(order, codes + d, token, at);
    if (bits == 4) PutCodes4(order, codes + d, token, at);
    if (bits == 3) PutCodes3(order, codes + d, token, at);
    if (bits == 2) PutCodes2(codes + d, token, at);
    at += TileBytes(segment.codec);
  }
  Put(scale.scale, at + 2 * token);
  if (Info(segment.codec).scale_bytes == 4) Put(scale.zero, at + 2 * (kBlockTokens + token));
}

// One token of a plane. A head has head_values values; the plane's dims beyond them are zero.
void PutRow(const CachePlane& plane, const float* values, int head_values, int token,
            uint8_t* block) {
  const int dims = plane.dims();
  float padded[kMaxRowDims];
  for (int head = 0; head < plane.latent_heads; ++head) {
    const float* from = values + static_cast<int64_t>(head) * head_values;
    if (head_values < dims) {
      std::memcpy(padded, from, head_values * sizeof(float));
      std::memset(padded + head_values, 0, (dims - head_values) * sizeof(float));
      from = padded;
    }
    for (const Segment& segment : plane.segments) {
      PutSegment(segment, plane.order, from, token, block);
      from += segment.dims;
      block += segment.dims / kTileDims * TileBytes(segment.codec) +
               kBlockTokens * Info(segment.codec).scale_bytes;
    }
  }
}

}  // namespace

void CpuAppendCache(ThreadPool& pool, const AppendCacheParams& p) {
  LATENTD_CHECK(p.plan != nullptr);
  const AttentionSpec& spec = p.plan->spec();
  LATENTD_CHECK(p.cache.block_bytes >= spec.cache.block_bytes());
  const bool full = spec.path == AttentionPath::kFull;
  const int k_values = full ? spec.head_dim : spec.cache.k.dims();
  const int v_values = full ? spec.head_dim : spec.cache.v.dims();
  const int64_t rows = static_cast<int64_t>(p.cache.slots.size());
  const auto append = [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const int64_t slot = p.cache.slots[t];
      LATENTD_CHECK(slot >= 0);
      uint8_t* block = p.cache.layer + slot / kBlockTokens * p.cache.block_bytes;
      const int token = static_cast<int>(slot % kBlockTokens);
      PutRow(spec.cache.k, p.k + t * p.k_stride, k_values, token, block);
      PutRow(spec.cache.v, p.v + t * p.v_stride, v_values, token,
             block + spec.cache.k.plane_bytes());
    }
  };
  constexpr int kFewRows = 4;  // not worth waking a thread
  if (rows <= kFewRows) {
    append(0, rows, 0);
  } else {
    pool.ParallelFor(rows, pool.Grain(rows), append);
  }
}

}  // namespace latentd
#endif  // HWY_ONCE
