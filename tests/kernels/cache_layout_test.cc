#include "kernels/cache_layout.h"

#include <cmath>
#include <set>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "tests/testing/random_values.h"

namespace latentd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Codec kCodecs[] = {Codec::kF32,     Codec::kF16,     Codec::kInt8,
                             Codec::kInt4,    Codec::kInt3,    Codec::kInt2,
                             Codec::kMinMax4, Codec::kMinMax3, Codec::kMinMax2};
constexpr TileOrder kOrders[] = {TileOrder::kDimMajor, TileOrder::kTokenMajor};

const char* Name(TileOrder order) {
  return order == TileOrder::kDimMajor ? "dim-major" : "token-major";
}

// Widths of every kind beside each other.
CachePlane MixedPlane(TileOrder order) {
  return {.latent_heads = 2,
          .segments = {{.dims = 16, .codec = Codec::kF32},
                       {.dims = 32, .codec = Codec::kInt4},
                       {.dims = 48, .codec = Codec::kInt3},
                       {.dims = 16, .codec = Codec::kF16},
                       {.dims = 64, .codec = Codec::kInt2},
                       {.dims = 16, .codec = Codec::kMinMax3},
                       {.dims = 32, .codec = Codec::kInt8},
                       {.dims = 16, .codec = Codec::kMinMax4},
                       {.dims = 32, .codec = Codec::kMinMax2}},
          .order = order};
}

// What a segment of the codec makes of `row`, without any layout.
std::vector<float> RoundTrip(Codec codec, absl::Span<const float> row) {
  std::vector<float> values;
  if (codec == Codec::kF32) return {row.begin(), row.end()};
  if (codec == Codec::kF16) {
    for (const float value : row) values.push_back(HalfToFloat(FloatToHalf(value)));
    return values;
  }
  std::vector<uint8_t> codes(row.size());
  const CodeScale scale = EncodeRow(codec, row, absl::MakeSpan(codes));
  for (const uint8_t code : codes) {
    values.push_back(DecodeScale(codec, scale) * static_cast<float>(code) +
                     DecodeOffset(codec, scale));
  }
  return values;
}

std::vector<float> RoundTrip(const CachePlane& plane, absl::Span<const float> row) {
  std::vector<float> values;
  for (const Segment& segment : plane.segments) {
    const std::vector<float> part = RoundTrip(segment.codec, row.first(segment.dims));
    values.insert(values.end(), part.begin(), part.end());
    row.remove_prefix(segment.dims);
  }
  return values;
}

TEST(PlaceOf, CodesFillTheTileExactlyOnce) {
  for (const Codec codec : kCodecs) {
    for (const TileOrder order : kOrders) {
      std::set<int> bits;
      for (int dim = 0; dim < kTileDims; ++dim) {
        for (int token = 0; token < kBlockTokens; ++token) {
          int total = 0;
          for (int part = 0; part < NumParts(codec); ++part) {
            const CodePlace place = PlaceOf(codec, order, dim, token, part);
            for (int b = 0; b < place.bits; ++b) bits.insert(8 * place.byte + place.shift + b);
            if (place.bits <= 8) {
              EXPECT_LE(place.shift + place.bits, 8);
            }
            total += place.bits;
          }
          EXPECT_EQ(total, Info(codec).bits);
        }
      }
      const int64_t tile_bits = 8 * TileBytes(codec);
      EXPECT_EQ(static_cast<int64_t>(bits.size()), tile_bits)
          << Info(codec).name << " " << Name(order);
      EXPECT_EQ(*bits.begin(), 0);
      EXPECT_EQ(*bits.rbegin(), tile_bits - 1);
    }
  }
}

// The drawing of cache_layout.h, spot by spot.
TEST(PlaceOf, IsTheDrawnOrder) {
  const auto expect = [](Codec codec, TileOrder order, int dim, int token, int part,
                         CodePlace want) {
    const CodePlace got = PlaceOf(codec, order, dim, token, part);
    EXPECT_EQ(got.byte, want.byte) << Info(codec).name << " " << Name(order);
    EXPECT_EQ(got.shift, want.shift) << Info(codec).name << " " << Name(order);
    EXPECT_EQ(got.bits, want.bits) << Info(codec).name << " " << Name(order);
  };
  const TileOrder k = TileOrder::kDimMajor, v = TileOrder::kTokenMajor;
  expect(Codec::kF32, k, 3, 5, 0, {(3 * 64 + 5) * 4, 0, 32});
  expect(Codec::kF16, k, 3, 5, 0, {(3 * 64 + 5) * 2, 0, 16});
  expect(Codec::kInt8, k, 6, 5, 0, {(1 * 64 + 5) * 4 + 2, 0, 8});
  expect(Codec::kInt4, k, 6, 5, 0, {(1 * 64 + 5) * 4 + 2, 0, 4});   // 4 * 1 + 2, low nibble
  expect(Codec::kInt4, k, 11, 5, 0, {(0 * 64 + 5) * 4 + 3, 4, 4});  // 4 * (0 + 2) + 3, high nibble
  expect(Codec::kMinMax4, k, 15, 63, 0, {(1 * 64 + 63) * 4 + 3, 4, 4});
  expect(Codec::kInt2, k, 9, 5, 0, {5 * 4 + 1, 4, 2});
  expect(Codec::kInt3, k, 9, 5, 0, {5 * 4 + 1, 4, 2});
  expect(Codec::kInt3, k, 9, 5, 1,
         {256 + 5 * 2 + 0, 4 * 1 + 2, 1});  // bit 4j + q of dim 4q + j: q = 2, j = 1
  expect(Codec::kInt3, k, 14, 5, 1, {256 + 5 * 2 + 1, 3, 1});  // q = 3, j = 2: bit 11
  expect(Codec::kF16, v, 3, 5, 0, {(5 * 16 + 3) * 2, 0, 16});
  expect(Codec::kInt8, v, 6, 5, 0, {5 * 16 + 6, 0, 8});
  expect(Codec::kInt4, v, 6, 5, 0, {5 * 8 + 6, 0, 4});
  expect(Codec::kInt4, v, 14, 5, 0, {5 * 8 + 6, 4, 4});
  expect(Codec::kInt2, v, 9, 5, 0, {5 * 4 + 1, 4, 2});
  expect(Codec::kInt3, v, 9, 5, 1, {256 + 5 * 2 + 1, 1, 1});
}

TEST(CachePlane, BytesAreTheTheorys) {
  for (const Codec codec : kCodecs) {
    for (const int dims : {16, 64, 208}) {
      const CachePlane plane{.latent_heads = 3, .segments = {{.dims = dims, .codec = codec}}};
      const int64_t bits_per_token = int64_t{dims} * Info(codec).bits + 8 * Info(codec).scale_bytes;
      EXPECT_EQ(plane.head_bytes() * 8, 64 * bits_per_token) << Info(codec).name;
      EXPECT_EQ(plane.plane_bytes(), 3 * plane.head_bytes());
      EXPECT_EQ(plane.scale_offset(0), plane.head_bytes() - 64 * Info(codec).scale_bytes);
    }
  }
}

TEST(CachePlane, SegmentsLieBehindEachOther) {
  const CachePlane plane = MixedPlane(TileOrder::kDimMajor);
  int64_t offset = 0;
  int dims = 0;
  for (size_t s = 0; s < plane.segments.size(); ++s) {
    const Segment& segment = plane.segments[s];
    EXPECT_EQ(plane.segment_offset(static_cast<int>(s)), offset);
    EXPECT_EQ(offset % 64, 0) << "vector loads of a segment start on a cache line";
    offset += segment.dims / 16 * TileBytes(segment.codec);
    EXPECT_EQ(plane.scale_offset(static_cast<int>(s)), offset);
    offset += 64 * Info(segment.codec).scale_bytes;
    dims += segment.dims;
  }
  EXPECT_EQ(plane.head_bytes(), offset);
  EXPECT_EQ(plane.dims(), dims);
}

TEST(CacheLayout, AddressesAreDisjointAndFillThePool) {
  const CacheLayer mixed{.k = MixedPlane(TileOrder::kDimMajor),
                         .v = MixedPlane(TileOrder::kTokenMajor)};
  const std::vector<CacheLayer> layers = {FullCacheLayer(2, 24), mixed,
                                          FullCacheLayer(1, 64, Codec::kInt4)};
  const auto layout = CacheLayout::Create(layers, 3, 1);
  ASSERT_TRUE(layout.ok()) << layout.status();
  int64_t next = 0;
  for (int l = 0; l < layout->num_layers(); ++l) {
    const CacheLayer& layer = layout->layer(l);
    EXPECT_EQ(layout->layer_base(l), next);
    for (int64_t block = 0; block < 3; ++block) {
      for (int h = 0; h < layer.k.latent_heads; ++h) {
        EXPECT_EQ(layout->layer_base(l) + layer.k_offset(block, h), next);
        next += layer.k.head_bytes();
      }
      for (int h = 0; h < layer.v.latent_heads; ++h) {
        EXPECT_EQ(layout->layer_base(l) + layer.v_offset(block, h), next);
        next += layer.v.head_bytes();
      }
    }
  }
  EXPECT_EQ(layout->total_bytes(), next);
  EXPECT_EQ(layout->bytes_per_block() * 3, next);
  EXPECT_EQ(layout->bytes_per_token(), static_cast<double>(next) / 3 / 64);
}

// SmolLM2-135M: 30 layers of 3 KV heads of 64 dims.
// What the vector loads of every backend may rely on, with a pool that is itself aligned.
TEST(CacheLayout, EveryPartBeginsAtAMultipleOf128Bytes) {
  const CacheLayer layer{.k = MixedPlane(TileOrder::kDimMajor),
                         .v = MixedPlane(TileOrder::kTokenMajor)};
  const auto layout = CacheLayout::Create({layer, layer}, 3, 1);
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layout->layer_base(1) % 128, 0);
  EXPECT_EQ(layer.k_offset(1, 1) % 128, 0);
  EXPECT_EQ(layer.v_offset(2, 1) % 128, 0);
  for (int s = 0; s < std::ssize(layer.k.segments); ++s) {
    EXPECT_EQ(layer.k.segment_offset(s) % 128, 0);
    EXPECT_EQ(layer.k.scale_offset(s) % 128, 0);
    EXPECT_EQ(TileBytes(layer.k.segments[s].codec) % 128, 0);
  }
}

// A pool of a petabyte has 64-bit addresses in every step of their making.
TEST(CacheLayout, LargePoolsDoNotOverflow) {
  const CacheLayer layer = FullCacheLayer(8, 128);
  constexpr int64_t kBlocks = int64_t{1} << 32;
  const auto layout = CacheLayout::Create({layer, layer}, kBlocks, 1);
  ASSERT_TRUE(layout.ok());
  EXPECT_EQ(layer.block_bytes(), 64 * 2 * 8 * 128 * 2);
  EXPECT_EQ(layout->total_bytes(), 2 * kBlocks * layer.block_bytes());
  EXPECT_EQ(layout->layer_base(1), kBlocks * layer.block_bytes());
  EXPECT_EQ(layer.v_offset(kBlocks - 1, 7) + layer.v.head_bytes(), kBlocks * layer.block_bytes());
}

TEST(CacheLayout, BytesPerTokenOfAModel) {
  const auto full = CacheLayout::Create(std::vector<CacheLayer>(30, FullCacheLayer(3, 64)), 7, 1);
  ASSERT_TRUE(full.ok());
  EXPECT_EQ(full->bytes_per_token(), 23040.0);
  const auto int4 =
      CacheLayout::Create(std::vector<CacheLayer>(30, FullCacheLayer(3, 64, Codec::kInt4)), 7, 1);
  ASSERT_TRUE(int4.ok());
  EXPECT_EQ(int4->bytes_per_token(), 30.0 * 2 * 3 * (64 / 2 + 2));
}

TEST(CacheLayout, RefusesWhatIsNoCache) {
  const auto message = [](std::vector<CacheLayer> layers, int64_t num_blocks) {
    const auto layout = CacheLayout::Create(std::move(layers), num_blocks, 1);
    EXPECT_EQ(layout.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(layout.status().message());
  };
  const CacheLayer good = FullCacheLayer(2, 64);
  EXPECT_THAT(message({}, 1), HasSubstr("0 layers"));
  EXPECT_THAT(message({good}, 0), HasSubstr("0 blocks"));
  EXPECT_THAT(message({good}, -1), HasSubstr("-1 blocks"));
  CacheLayer headless = good;
  headless.v.latent_heads = 0;
  EXPECT_THAT(message({good, headless}, 1),
              AllOf(HasSubstr("layer 1"), HasSubstr("V"), HasSubstr("0 latent heads")));
  for (const int dims : {-16, 0, 15, 24}) {
    CacheLayer odd = good;
    odd.k.segments.push_back({.dims = dims, .codec = Codec::kInt4});
    EXPECT_THAT(message({odd}, 1),
                AllOf(HasSubstr("layer 0"), HasSubstr(std::to_string(dims)), HasSubstr("16")));
  }
  EXPECT_THAT(message({good}, int64_t{1} << 60), HasSubstr(std::to_string(int64_t{1} << 60)));
  CacheLayer huge = good;
  huge.k.latent_heads = 1 << 30;
  huge.k.segments[0].dims = 1 << 30;
  EXPECT_THAT(message({huge}, 1 << 30), HasSubstr("limit"));
}

TEST(FullCacheLayer, RoundsTheHeadUp) {
  const CacheLayer layer = FullCacheLayer(2, 24, Codec::kF32);
  EXPECT_EQ(layer.k.dims(), 32);
  EXPECT_EQ(layer.v.dims(), 32);
  EXPECT_EQ(layer.k.order, TileOrder::kDimMajor);
  EXPECT_EQ(layer.v.order, TileOrder::kTokenMajor);
}

TEST(CacheRows, ReadBackWhatTheCodecMakesOfThem) {
  for (const TileOrder order : kOrders) {
    const CachePlane plane = MixedPlane(order);
    std::vector<uint8_t> head(plane.head_bytes(), 0xFF);
    std::vector<std::vector<float>> rows;
    for (int token = 0; token < kBlockTokens; ++token) {
      rows.push_back(GaussianValues(plane.dims(), token, 1.0f + static_cast<float>(token)));
      WriteCacheRow(plane, head.data(), token, rows.back());
    }
    std::vector<float> got(plane.dims());
    for (int token = 0; token < kBlockTokens; ++token) {
      ReadCacheRow(plane, head.data(), token, absl::MakeSpan(got));
      EXPECT_EQ(got, RoundTrip(plane, rows[token])) << Name(order) << " token " << token;
    }
  }
}

// Writes token 21 into poison: nothing but its own bits changes, and every one of its bits may.
TEST(CacheRows, DisturbNoNeighbour) {
  for (const TileOrder order : kOrders) {
    const CachePlane plane = MixedPlane(order);
    constexpr int kToken = 21;
    std::vector<uint8_t> own_bits(plane.head_bytes(), 0);
    for (size_t s = 0; s < plane.segments.size(); ++s) {
      const Segment& segment = plane.segments[s];
      for (int dim = 0; dim < segment.dims; ++dim) {
        for (int part = 0; part < NumParts(segment.codec); ++part) {
          const CodePlace place = PlaceOf(segment.codec, order, dim % 16, kToken, part);
          const int64_t byte = plane.segment_offset(static_cast<int>(s)) +
                               dim / 16 * TileBytes(segment.codec) + place.byte;
          for (int b = 0; b < place.bits; ++b) {
            own_bits[byte + b / 8] |= static_cast<uint8_t>(1 << (place.shift + b % 8));
          }
        }
      }
      for (int i = 0; i < Info(segment.codec).scale_bytes; ++i) {
        own_bits[plane.scale_offset(static_cast<int>(s)) + (i / 2) * 128 + 2 * kToken + i % 2] =
            0xFF;
      }
    }
    const std::vector<float> row = GaussianValues(plane.dims(), 77);
    for (const uint8_t background : {0x00, 0xFF}) {
      std::vector<uint8_t> head(plane.head_bytes(), background);
      WriteCacheRow(plane, head.data(), kToken, row);
      for (size_t i = 0; i < head.size(); ++i) {
        ASSERT_EQ((head[i] ^ background) & ~own_bits[i], 0) << Name(order) << " byte " << i;
      }
      std::vector<float> got(plane.dims());
      ReadCacheRow(plane, head.data(), kToken, absl::MakeSpan(got));
      EXPECT_EQ(got, RoundTrip(plane, row)) << "whatever the bytes held before";
    }
  }
}

TEST(CacheRows, UnwrittenRowsReadAsNan) {
  const CachePlane plane = MixedPlane(TileOrder::kDimMajor);
  const std::vector<uint8_t> head(plane.head_bytes(), 0xFF);
  std::vector<float> got(plane.dims());
  ReadCacheRow(plane, head.data(), 0, absl::MakeSpan(got));
  for (const float value : got) EXPECT_TRUE(std::isnan(value));
}

}  // namespace
}  // namespace latentd
