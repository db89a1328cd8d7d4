#include "kernels/cache_layout.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/dtype.h"

namespace latentd {
namespace {

constexpr int64_t kMaxPoolBytes = int64_t{1} << 62;
constexpr int64_t kMaxHeadDims = int64_t{1} << 30;  // of all segments, so that an int holds them

// Bytes of the scales (and zeros) of a segment in one block.
int64_t ScaleBytes(Codec codec) { return int64_t{kBlockTokens} * Info(codec).scale_bytes; }

int64_t CodeBytes(const Segment& segment) {
  return segment.dims / kTileDims * TileBytes(segment.codec);
}

CodePlace TwoBitPlace(int dim, int token) { return {token * 4 + dim % 4, 2 * (dim / 4), 2}; }

CodePlace HighBitPlace(TileOrder order, int dim, int token) {
  constexpr int kHighPlane =
      kTileDims * kBlockTokens * 2 / 8;  // it follows the plane of the two low bits
  const int bit = order == TileOrder::kDimMajor ? 4 * (dim % 4) + dim / 4 : dim;
  return {kHighPlane + token * 2 + bit / 8, bit % 8, 1};
}

CodePlace FourBitPlace(TileOrder order, int dim, int token) {
  const int shift = 4 * (dim / 8);
  if (order == TileOrder::kTokenMajor) return {token * 8 + dim % 8, shift, 4};
  const int word = dim / 4 % 2;
  return {(word * kBlockTokens + token) * 4 + dim % 4, shift, 4};
}

CodePlace EightBitPlace(TileOrder order, int dim, int token) {
  if (order == TileOrder::kTokenMajor) return {token * kTileDims + dim, 0, 8};
  return {(dim / 4 * kBlockTokens + token) * 4 + dim % 4, 0, 8};
}

CodePlace WholePlace(TileOrder order, int dim, int token, int bits) {
  const int index =
      order == TileOrder::kTokenMajor ? token * kTileDims + dim : dim * kBlockTokens + token;
  return {index * bits / 8, 0, bits};
}

void PutBits(uint8_t* tile, CodePlace place, int value) {
  const int mask = ((1 << place.bits) - 1) << place.shift;
  tile[place.byte] = static_cast<uint8_t>((tile[place.byte] & ~mask) | (value << place.shift));
}

int GetBits(const uint8_t* tile, CodePlace place) {
  return (tile[place.byte] >> place.shift) & ((1 << place.bits) - 1);
}

// The tile of dim `dim` of a segment.
int64_t TileOffset(Codec codec, int dim) { return dim / kTileDims * TileBytes(codec); }

void WriteWhole(TileOrder order, const Segment& segment, uint8_t* at, int token,
                absl::Span<const float> values) {
  for (int i = 0; i < segment.dims; ++i) {
    const CodePlace place = PlaceOf(segment.codec, order, i % kTileDims, token, 0);
    uint8_t* to = at + TileOffset(segment.codec, i) + place.byte;
    if (segment.codec == Codec::kF32) {
      std::memcpy(to, &values[i], 4);
    } else {
      const uint16_t half = FloatToHalf(values[i]);
      std::memcpy(to, &half, 2);
    }
  }
}

void WriteCodes(TileOrder order, const Segment& segment, uint8_t* at, int token,
                absl::Span<const float> values) {
  std::vector<uint8_t> codes(segment.dims);
  const CodeScale scale = EncodeRow(segment.codec, values, absl::MakeSpan(codes));
  for (int i = 0; i < segment.dims; ++i) {
    uint8_t* tile = at + TileOffset(segment.codec, i);
    int code = codes[i];
    for (int part = 0; part < NumParts(segment.codec); ++part) {
      const CodePlace place = PlaceOf(segment.codec, order, i % kTileDims, token, part);
      PutBits(tile, place, code & ((1 << place.bits) - 1));
      code >>= place.bits;
    }
  }
  uint8_t* scales = at + CodeBytes(segment);
  std::memcpy(scales + 2 * token, &scale.scale, 2);
  if (Info(segment.codec).scale_bytes == 4) {
    std::memcpy(scales + 2 * kBlockTokens + 2 * token, &scale.zero, 2);
  }
}

void ReadWhole(TileOrder order, const Segment& segment, const uint8_t* at, int token,
               absl::Span<float> values) {
  for (int i = 0; i < segment.dims; ++i) {
    const CodePlace place = PlaceOf(segment.codec, order, i % kTileDims, token, 0);
    const uint8_t* from = at + TileOffset(segment.codec, i) + place.byte;
    if (segment.codec == Codec::kF32) {
      std::memcpy(&values[i], from, 4);
    } else {
      uint16_t half;
      std::memcpy(&half, from, 2);
      values[i] = HalfToFloat(half);
    }
  }
}

void ReadCodes(TileOrder order, const Segment& segment, const uint8_t* at, int token,
               absl::Span<float> values) {
  CodeScale stored;
  const uint8_t* scales = at + CodeBytes(segment);
  std::memcpy(&stored.scale, scales + 2 * token, 2);
  if (Info(segment.codec).scale_bytes == 4) {
    std::memcpy(&stored.zero, scales + 2 * kBlockTokens + 2 * token, 2);
  }
  const float scale = DecodeScale(segment.codec, stored);
  const float offset = DecodeOffset(segment.codec, stored);
  for (int i = 0; i < segment.dims; ++i) {
    const uint8_t* tile = at + TileOffset(segment.codec, i);
    int code = 0, shift = 0;
    for (int part = 0; part < NumParts(segment.codec); ++part) {
      const CodePlace place = PlaceOf(segment.codec, order, i % kTileDims, token, part);
      code |= GetBits(tile, place) << shift;
      shift += place.bits;
    }
    values[i] = scale * static_cast<float>(code) + offset;
  }
}

absl::Status CheckPlane(const CachePlane& plane, int layer, const char* name) {
  if (plane.latent_heads <= 0 || plane.segments.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "cache layer ", layer, ": the ", name, " plane has ", plane.latent_heads,
        " latent heads of ", plane.segments.size(), " segments, needs at least 1 of 1"));
  }
  int64_t dims = 0;
  for (const Segment& segment : plane.segments) {
    if (segment.dims <= 0 || segment.dims % kTileDims != 0) {
      return absl::InvalidArgumentError(
          absl::StrCat("cache layer ", layer, ": a segment of the ", name, " plane has ",
                       segment.dims, " dims, not a positive multiple of ", kTileDims));
    }
    dims += segment.dims;
  }
  if (dims > kMaxHeadDims) {
    return absl::InvalidArgumentError(absl::StrCat("cache layer ", layer, ": a latent head of the ",
                                                   name, " plane has ", dims,
                                                   " dims, the limit is ", kMaxHeadDims));
  }
  return absl::OkStatus();
}

absl::Status CheckSequencePart(const CacheLayer& layer, int l) {
  if (layer.sinks < 0 || layer.sinks > kBlockTokens) {
    return absl::InvalidArgumentError(absl::StrCat("cache layer ", l, ": ", layer.sinks,
                                                   " exact sinks, allowed: 0 to ", kBlockTokens));
  }
  if ((layer.sinks > 0) != (layer.sink_dims > 0) || layer.sink_dims < 0) {
    return absl::InvalidArgumentError(absl::StrCat("cache layer ", l, ": ", layer.sinks,
                                                   " exact sinks of ", layer.sink_dims, " dims"));
  }
  if (layer.key_norms < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("cache layer ", l, ": key_norms is ", layer.key_norms, ", at least 0"));
  }
  return absl::OkStatus();
}

// In double, so that absurd dims cannot overflow the check itself.
double ApproximateBytes(const CachePlane& plane) {
  double dims_bits = 0;
  for (const Segment& segment : plane.segments) {
    const CodecInfo& info = Info(segment.codec);
    dims_bits += static_cast<double>(segment.dims) * info.bits + 8.0 * info.scale_bytes;
  }
  return plane.latent_heads * dims_bits / 8.0 * kBlockTokens;
}

double ApproximateBlockBytes(const CacheLayer& layer) {
  return ApproximateBytes(layer.k) + ApproximateBytes(layer.v) +
         2.0 * layer.key_norms * kBlockTokens;
}

double ApproximateSequenceBytes(const CacheLayer& layer) {
  const double sinks = 4.0 * layer.sinks * layer.sink_dims;
  return layer.own_page ? sinks + ApproximateBlockBytes(layer.OwnPageLayer()) : sinks;
}

}  // namespace

int NumParts(Codec codec) { return Info(codec).bits == 3 ? 2 : 1; }

CodePlace PlaceOf(Codec codec, TileOrder order, int dim_in_tile, int token_in_block, int part) {
  switch (Info(codec).bits) {
    case 2:
      return TwoBitPlace(dim_in_tile, token_in_block);
    case 3:
      return part == 0 ? TwoBitPlace(dim_in_tile, token_in_block)
                       : HighBitPlace(order, dim_in_tile, token_in_block);
    case 4:
      return FourBitPlace(order, dim_in_tile, token_in_block);
    case 8:
      return EightBitPlace(order, dim_in_tile, token_in_block);
    default:
      return WholePlace(order, dim_in_tile, token_in_block, Info(codec).bits);
  }
}

int CachePlane::dims() const {
  int dims = 0;
  for (const Segment& segment : segments) dims += segment.dims;
  return dims;
}

int64_t CachePlane::head_bytes() const { return segment_offset(static_cast<int>(segments.size())); }

int64_t CachePlane::segment_offset(int s) const {
  int64_t offset = 0;
  for (int i = 0; i < s; ++i) offset += CodeBytes(segments[i]) + ScaleBytes(segments[i].codec);
  return offset;
}

int64_t CachePlane::scale_offset(int s) const { return segment_offset(s) + CodeBytes(segments[s]); }

int64_t TileBytes(Codec codec) { return kTileDims * kBlockTokens * Info(codec).bits / 8; }

CacheLayer FullCacheLayer(int num_kv_heads, int head_dim, Codec codec) {
  const Segment segment{.dims = (head_dim + kTileDims - 1) / kTileDims * kTileDims, .codec = codec};
  return {
      .k = {.latent_heads = num_kv_heads, .segments = {segment}, .order = TileOrder::kDimMajor},
      .v = {.latent_heads = num_kv_heads, .segments = {segment}, .order = TileOrder::kTokenMajor}};
}

int64_t CacheLayer::sink_bytes() const {
  constexpr int64_t kAlignment = 128;
  const int64_t bytes = int64_t{2} * 2 * sinks * sink_dims;  // K and V, fp16
  return (bytes + kAlignment - 1) / kAlignment * kAlignment;
}

// OwnPageLayer().block_bytes(), which a step asks for often, without its vectors.
int64_t CacheLayer::own_page_bytes() const {
  if (!own_page) return 0;
  const int64_t latents = int64_t{k.latent_heads} * k.dims() + int64_t{v.latent_heads} * v.dims();
  return 2 * kBlockTokens * (latents + key_norms);
}

CacheLayer CacheLayer::OwnPageLayer() const {
  CacheLayer page{.k = k, .v = v, .key_norms = key_norms};
  page.k.segments = {{.dims = k.dims(), .codec = Codec::kF16}};
  page.v.segments = {{.dims = v.dims(), .codec = Codec::kF16}};
  return page;
}

absl::StatusOr<CacheLayout> CacheLayout::Create(std::vector<CacheLayer> layers, int64_t num_blocks,
                                                int64_t num_sequences) {
  if (layers.empty() || num_blocks <= 0 || num_sequences <= 0) {
    return absl::InvalidArgumentError(absl::StrCat("cache of ", layers.size(), " layers, ",
                                                   num_blocks, " blocks and ", num_sequences,
                                                   " sequences, needs at least 1, 1 and 1"));
  }
  double approximate_bytes = 0;
  for (size_t l = 0; l < layers.size(); ++l) {
    RETURN_IF_ERROR(CheckPlane(layers[l].k, static_cast<int>(l), "K"));
    RETURN_IF_ERROR(CheckPlane(layers[l].v, static_cast<int>(l), "V"));
    RETURN_IF_ERROR(CheckSequencePart(layers[l], static_cast<int>(l)));
    approximate_bytes += ApproximateBlockBytes(layers[l]) * static_cast<double>(num_blocks) +
                         ApproximateSequenceBytes(layers[l]) * static_cast<double>(num_sequences);
    if (approximate_bytes >= static_cast<double>(kMaxPoolBytes)) {
      return absl::InvalidArgumentError(absl::StrCat("cache of ", num_blocks, " blocks takes ",
                                                     approximate_bytes, " bytes by layer ", l,
                                                     ", the limit is ", kMaxPoolBytes));
    }
  }
  CacheLayout layout;
  layout.num_blocks_ = num_blocks;
  layout.num_sequences_ = num_sequences;
  for (const CacheLayer& layer : layers) {
    layout.layer_base_.push_back(layout.bytes_per_block_ * num_blocks);
    layout.bytes_per_block_ += layer.block_bytes();
  }
  for (const CacheLayer& layer : layers) {
    layout.sequence_base_.push_back(layout.bytes_per_block_ * num_blocks +
                                    layout.bytes_per_sequence_ * num_sequences);
    layout.bytes_per_sequence_ += layer.sequence_bytes();
  }
  layout.layers_ = std::move(layers);
  return layout;
}

void WriteCacheRow(const CachePlane& plane, uint8_t* head, int token_in_block,
                   absl::Span<const float> values) {
  LATENTD_CHECK(static_cast<int>(values.size()) == plane.dims());
  LATENTD_CHECK(token_in_block >= 0 && token_in_block < kBlockTokens);
  for (const Segment& segment : plane.segments) {
    const auto write = Info(segment.codec).scale_bytes == 0 ? WriteWhole : WriteCodes;
    write(plane.order, segment, head, token_in_block, values.first(segment.dims));
    head += CodeBytes(segment) + ScaleBytes(segment.codec);
    values.remove_prefix(segment.dims);
  }
}

void ReadCacheRow(const CachePlane& plane, const uint8_t* head, int token_in_block,
                  absl::Span<float> values) {
  LATENTD_CHECK(static_cast<int>(values.size()) == plane.dims());
  LATENTD_CHECK(token_in_block >= 0 && token_in_block < kBlockTokens);
  for (const Segment& segment : plane.segments) {
    const auto read = Info(segment.codec).scale_bytes == 0 ? ReadWhole : ReadCodes;
    read(plane.order, segment, head, token_in_block, values.first(segment.dims));
    head += CodeBytes(segment) + ScaleBytes(segment.codec);
    values.remove_prefix(segment.dims);
  }
}

}  // namespace latentd
