#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/codec.h"

namespace latentd {

// The bytes of the paged cache. The only place where a block id becomes an address.
//
// A block holds 64 consecutive tokens of one sequence, for all layers:
//
//   pool    = layer 0's region | layer 1's region | ...         layer_base(l)
//             | layer 0's sequences | layer 1's sequences | ... sequence_base(l)
//   region  = block 0 | block 1 | ... | block num_blocks - 1    block_bytes() each
//   block   = K plane | V plane | key norms                     plane_bytes() each
//   plane   = latent head 0 | latent head 1 | ...               head_bytes() each
//   head    = segment 0 | segment 1 | ...                       segment_offset(s)
//   segment = tile 0 | tile 1 | ... | scales[64] | zeros[64]    scale_offset(s)
//   tile    = 16 dims x 64 tokens of codes (CodePlace)          TileBytes() each
//
//   norms   = one array [64] per KV head of 1 / norm of each token's rebuilt key (fp16), where the
//             model normalises keys
//
// What a sequence keeps once, beside its blocks, in the one of the num_sequences places that it has
// while it holds blocks (its "seat"):
//
//   sequences = seat 0 | seat 1 | ... | seat num_sequences - 1  sequence_bytes() each
//   seat      = exact sinks: K [sinks][sink_dims] fp16, V likewise, padded to 128 bytes
//               | own page: a block of OwnPageLayer(), the page that is being filled
//
// Scales, zeros and norms are fp16; scales are there for codecs with a scale, zeros for min-max
// ones. All numbers are little endian. A tile and an array of scales are multiples of 128 bytes, so
// every part down to the tile begins at a multiple of 128 bytes from the pool's start. What no
// token has written yet may hold anything.
inline constexpr int kBlockTokens = 64;
inline constexpr int kTileDims = 16;

// Order of the 16 x 64 codes of a tile.
//
//   kDimMajor (K: scores run over tokens in vector lanes)
//     f32, f16   [16 dims][64 tokens]
//     8 bits     [4][64 tokens][4 bytes]: byte j of word w holds dim 4w + j
//     4 bits     [2][64 tokens][4 bytes]: byte j of word w holds dim 4w + j in its low nibble and
//                dim 4(w + 2) + j in its high one
//     3 bits     the two low bits of all codes as 2 bits, then their high bits:
//                [64 tokens][2 bytes]: bit 4j + q of the 16-bit word is dim 4q + j
//     2 bits     [64 tokens][4 bytes]: byte j holds dims j, 4 + j, 8 + j, 12 + j, lowest first
//
//   kTokenMajor (V: outputs run over dims in vector lanes)
//     f32, f16   [64 tokens][16 dims]
//     8 bits     [64 tokens][16 bytes]: byte j holds dim j
//     4 bits     [64 tokens][8 bytes]: byte j holds dim j in its low nibble and dim 8 + j in its
//                high one
//     3 bits     the two low bits of all codes as 2 bits, then their high bits:
//                [64 tokens][2 bytes]: bit i of the 16-bit word is dim i
//     2 bits     as kDimMajor
enum class TileOrder : uint8_t { kDimMajor, kTokenMajor };

// Where the bits of one code lie inside a tile: `bits` bits from bit `shift` of the byte at `byte`.
// A 3-bit code has two places: its two low bits (part 0) and its high bit (part 1); every other
// code has one. 16- and 32-bit values are whole bytes with shift 0.
struct CodePlace {
  int byte;
  int shift;
  int bits;
};
int NumParts(Codec codec);
CodePlace PlaceOf(Codec codec, TileOrder order, int dim_in_tile, int token_in_block, int part);

// Consecutive dims of one latent head that share a codec and, per token, a scale.
struct Segment {
  int dims = 0;  // a multiple of 16
  Codec codec = Codec::kF16;
  bool operator==(const Segment&) const = default;
};

// K or V of one layer. Every latent head has the same segments.
struct CachePlane {
  int latent_heads = 0;  // KV heads for a full cache, groups of KV heads for latents
  std::vector<Segment> segments;
  TileOrder order = TileOrder::kDimMajor;

  int dims() const;                     // of one latent head, all segments
  int64_t head_bytes() const;           // one latent head in one block
  int64_t segment_offset(int s) const;  // of segment s from its latent head's start, in a block
  int64_t scale_offset(int s) const;    // of segment s's scales[64] from its latent head's start
  int64_t plane_bytes() const { return latent_heads * head_bytes(); }
  bool operator==(const CachePlane&) const = default;
};
int64_t TileBytes(Codec codec);  // 16 dims x 64 tokens, without scales

struct CacheLayer {
  CachePlane k;  // kDimMajor
  CachePlane v;  // kTokenMajor

  // Latent caches only.
  // The keys (after RoPE) and values of the positions [0, sinks) are kept exact, in full rank.
  int sinks = 0;
  int sink_dims = 0;  // num_kv_heads * head_dim where there are sinks, else 0
  // A token sees the page (block of positions) that it lies in itself as 16-bit latents, earlier
  // pages as codes.
  bool own_page = false;
  int key_norms = 0;  // num_kv_heads where the model normalises keys, else 0

  int64_t block_bytes() const {
    return k.plane_bytes() + v.plane_bytes() + int64_t{2} * key_norms * kBlockTokens;
  }
  int64_t sink_bytes() const;      // exact sinks of one sequence
  int64_t own_page_bytes() const;  // one 16-bit page; 0 without
  int64_t sequence_bytes() const { return sink_bytes() + own_page_bytes(); }
  // This layer with every plane as one segment of kF16: the layout of an own page.
  CacheLayer OwnPageLayer() const;
  // Of KV head `head`'s key norms, from the start of a block (of this layer, or an own page).
  int64_t key_norm_offset(int head) const {
    return k.plane_bytes() + v.plane_bytes() + int64_t{2} * head * kBlockTokens;
  }
  // Of a latent head in a block, from the start of the layer's region.
  int64_t k_offset(int64_t block, int latent_head) const {
    return block * block_bytes() + latent_head * k.head_bytes();
  }
  int64_t v_offset(int64_t block, int latent_head) const {
    return block * block_bytes() + k.plane_bytes() + latent_head * v.head_bytes();
  }
  bool operator==(const CacheLayer&) const = default;
};

// The full 16-bit cache of a layer: one segment of head_dim values (rounded up to 16, the rest
// zero) per KV head.
CacheLayer FullCacheLayer(int num_kv_heads, int head_dim, Codec codec = Codec::kF16);

// Addresses of a pool of `num_blocks` blocks and `num_sequences` seats. Immutable.
class CacheLayout {
 public:
  // INVALID_ARGUMENT for a layer without heads, a segment whose dims are not a positive multiple of
  // 16, a latent head of more than 2^30 dims, sinks without sink_dims or more of them than a block
  // has tokens, or a pool that overflows 2^62 bytes; the message names the layer and the number.
  static absl::StatusOr<CacheLayout> Create(std::vector<CacheLayer> layers, int64_t num_blocks,
                                            int64_t num_sequences);

  int num_layers() const { return static_cast<int>(layers_.size()); }
  const CacheLayer& layer(int l) const { return layers_[l]; }
  int64_t num_blocks() const { return num_blocks_; }
  int64_t layer_base(int l) const { return layer_base_[l]; }
  int64_t num_sequences() const { return num_sequences_; }
  int64_t sequence_base(int l) const { return sequence_base_[l]; }
  int64_t bytes_per_block() const { return bytes_per_block_; }        // all layers
  int64_t bytes_per_sequence() const { return bytes_per_sequence_; }  // of a seat, all layers
  int64_t total_bytes() const {
    return bytes_per_block_ * num_blocks_ + bytes_per_sequence_ * num_sequences_;
  }
  double bytes_per_token() const { return static_cast<double>(bytes_per_block_) / kBlockTokens; }

 private:
  CacheLayout() = default;
  std::vector<CacheLayer> layers_;
  std::vector<int64_t> layer_base_;
  std::vector<int64_t> sequence_base_;
  int64_t num_blocks_ = 0;
  int64_t num_sequences_ = 0;
  int64_t bytes_per_block_ = 0;
  int64_t bytes_per_sequence_ = 0;
};

// One row (token) of one latent head: the definition of the layout, which the reference and the
// tests use. Other backends give the same bytes and numbers. `head` points to the latent head's
// start in the block, token_in_block is in [0, 64), values are plane.dims() many.
void WriteCacheRow(const CachePlane& plane, uint8_t* head, int token_in_block,
                   absl::Span<const float> values);  // encodes
void ReadCacheRow(const CachePlane& plane, const uint8_t* head, int token_in_block,
                  absl::Span<float> values);  // decodes

}  // namespace latentd
