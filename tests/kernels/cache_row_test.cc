// The order inside a tile, and rows of a head: PlaceOf, WriteCacheRow, ReadCacheRow.

#include <cmath>
#include <set>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cache_layout.h"
#include "kernels/dtype.h"
#include "tests/testing/random_values.h"

namespace latentd {
namespace {

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
