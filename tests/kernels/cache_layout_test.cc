#include "kernels/cache_layout.h"

#include <vector>

#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr Codec kCodecs[] = {Codec::kF32,     Codec::kF16,     Codec::kInt8,
                             Codec::kInt4,    Codec::kInt3,    Codec::kInt2,
                             Codec::kMinMax4, Codec::kMinMax3, Codec::kMinMax2};

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

int Draw(uint64_t seed, int& counter, int count) {
  return static_cast<int>(RandomBits(seed, counter++) % count);
}

// A layer as the compressor may ask for, or no compressor would.
CacheLayer RandomLayer(uint64_t seed, int& draws) {
  CacheLayer layer;
  for (CachePlane* plane : {&layer.k, &layer.v}) {
    plane->latent_heads = 1 + Draw(seed, draws, 4);
    for (int s = Draw(seed, draws, 4); s >= 0; --s) {
      plane->segments.push_back(
          {.dims = 16 * (1 + Draw(seed, draws, 12)), .codec = kCodecs[Draw(seed, draws, 9)]});
    }
  }
  layer.v.order = TileOrder::kTokenMajor;
  layer.sinks = Draw(seed, draws, 2) * Draw(seed, draws, 65);
  layer.sink_dims = layer.sinks > 0 ? 8 * (1 + Draw(seed, draws, 40)) : 0;
  layer.own_page = Draw(seed, draws, 2) == 1;
  layer.key_norms = Draw(seed, draws, 2) * Draw(seed, draws, 9);
  return layer;
}

// Bits of one token and latent head of a plane: codes, and 16 for each scale and zero.
int64_t BitsPerToken(const CachePlane& plane) {
  int64_t bits = 0;
  for (const Segment& segment : plane.segments) {
    const bool min_max = segment.codec >= Codec::kMinMax4;
    const bool whole = segment.codec <= Codec::kF16;
    bits += segment.dims * Info(segment.codec).bits + (whole ? 0 : min_max ? 32 : 16);
  }
  return bits;
}

int64_t DimsOf(const CachePlane& plane) {
  int64_t dims = 0;
  for (const Segment& segment : plane.segments) dims += segment.dims;
  return dims;
}

// Stored bytes == theory, for random layouts: blocks and seats.
TEST(CacheLayout, StoredBytesAreTheTheorysForRandomLayouts) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    int draws = 0;
    std::vector<CacheLayer> layers;
    for (int l = Draw(seed, draws, 5); l >= 0; --l) layers.push_back(RandomLayer(seed, draws));
    const int64_t blocks = 1 + Draw(seed, draws, 9), sequences = 1 + Draw(seed, draws, 9);
    int64_t block_bytes = 0, sequence_bytes = 0;
    for (const CacheLayer& layer : layers) {
      const int64_t token_bits = layer.k.latent_heads * BitsPerToken(layer.k) +
                                 layer.v.latent_heads * BitsPerToken(layer.v) +
                                 16 * layer.key_norms;
      block_bytes += 64 * token_bits / 8;
      const int64_t sinks = 2 * layer.sinks * layer.sink_dims * 2;
      sequence_bytes += (sinks + 127) / 128 * 128;
      if (!layer.own_page) continue;
      const int64_t latents =
          layer.k.latent_heads * DimsOf(layer.k) + layer.v.latent_heads * DimsOf(layer.v);
      sequence_bytes += 64 * 2 * (latents + layer.key_norms);
    }
    const auto layout = CacheLayout::Create(layers, blocks, sequences);
    ASSERT_TRUE(layout.ok()) << layout.status();
    EXPECT_EQ(layout->bytes_per_block(), block_bytes);
    EXPECT_EQ(layout->bytes_per_token(), static_cast<double>(block_bytes) / 64);
    EXPECT_EQ(layout->bytes_per_sequence(), sequence_bytes);
    EXPECT_EQ(layout->total_bytes(), blocks * block_bytes + sequences * sequence_bytes);
  }
}

// What the vector loads of every backend may rely on, with a pool that is itself aligned: every
// part begins at a multiple of 128 bytes, and the parts follow each other without a gap.
TEST(CacheLayout, PartsOfRandomLayoutsAreAlignedAndFillThePool) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    SCOPED_TRACE(seed);
    int draws = 0;
    const std::vector<CacheLayer> layers = {RandomLayer(seed, draws), RandomLayer(seed, draws)};
    constexpr int64_t kBlocks = 3, kSequences = 2;
    const auto layout = CacheLayout::Create(layers, kBlocks, kSequences);
    ASSERT_TRUE(layout.ok()) << layout.status();
    int64_t next = 0;
    const auto part = [&](int64_t begin, int64_t bytes) {
      EXPECT_EQ(begin, next);
      EXPECT_EQ(begin % 128, 0);
      next = begin + bytes;
    };
    const auto page = [&](const CacheLayer& layer, int64_t base, int64_t block) {
      for (const bool is_k : {true, false}) {
        const CachePlane& plane = is_k ? layer.k : layer.v;
        for (int h = 0; h < plane.latent_heads; ++h) {
          const int64_t head = base + (is_k ? layer.k_offset(block, h) : layer.v_offset(block, h));
          for (int s = 0; s < std::ssize(plane.segments); ++s) {
            const Segment& segment = plane.segments[s];
            EXPECT_EQ(TileBytes(segment.codec) % 128, 0);
            part(head + plane.segment_offset(s), segment.dims / 16 * TileBytes(segment.codec));
            part(head + plane.scale_offset(s), 64 * Info(segment.codec).scale_bytes);
          }
        }
      }
      for (int h = 0; h < layer.key_norms; ++h) {
        part(base + block * layer.block_bytes() + layer.key_norm_offset(h), 128);
      }
    };
    for (int l = 0; l < layout->num_layers(); ++l) {
      for (int64_t block = 0; block < kBlocks; ++block) {
        page(layout->layer(l), layout->layer_base(l), block);
      }
    }
    for (int l = 0; l < layout->num_layers(); ++l) {
      const CacheLayer& layer = layout->layer(l);
      for (int64_t seat = 0; seat < kSequences; ++seat) {
        const int64_t base = layout->sequence_base(l) + seat * layer.sequence_bytes();
        part(base, layer.sink_bytes());
        EXPECT_GE(layer.sink_bytes(), 2 * layer.sinks * layer.sink_dims * 2);
        if (layer.own_page) page(layer.OwnPageLayer(), base + layer.sink_bytes(), 0);
      }
    }
    EXPECT_EQ(next, layout->total_bytes());
  }
}

TEST(CacheLayer, OwnPagesAreThePlanesIn16Bits) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    int draws = 0;
    CacheLayer layer = RandomLayer(seed, draws);
    const CacheLayer own = layer.OwnPageLayer();
    for (const auto& [plane, page] : {std::pair(&layer.k, &own.k), std::pair(&layer.v, &own.v)}) {
      EXPECT_EQ(page->latent_heads, plane->latent_heads);
      EXPECT_EQ(page->order, plane->order);
      EXPECT_EQ(page->segments, (std::vector<Segment>{{plane->dims(), Codec::kF16}}));
    }
    EXPECT_EQ(own.key_norms, layer.key_norms);
    EXPECT_EQ(own.sequence_bytes(), 0) << "a page has no seat of its own";
    layer.own_page = true;
    EXPECT_EQ(layer.own_page_bytes(), own.block_bytes());
    layer.own_page = false;
    EXPECT_EQ(layer.own_page_bytes(), 0);
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

  CacheLayer seated = layer;
  seated.sinks = 4;
  seated.sink_dims = 1024;
  seated.own_page = true;
  const auto seats = CacheLayout::Create({seated, seated}, 1, kBlocks);
  ASSERT_TRUE(seats.ok());
  EXPECT_EQ(seated.sequence_bytes(), 4 * 2 * 1024 * 2 + layer.block_bytes());
  EXPECT_EQ(seats->sequence_base(1), 2 * layer.block_bytes() + kBlocks * seated.sequence_bytes());
}

// SmolLM2-135M: 30 layers of 3 KV heads of 64 dims.
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
  huge.k.latent_heads = 1;
  huge.k.segments.push_back(huge.k.segments[0]);
  EXPECT_THAT(message({huge}, 1),
              AllOf(HasSubstr(std::to_string(int64_t{1} << 31)), HasSubstr("limit")));
}

TEST(CacheLayout, RefusesWhatIsNoSeat) {
  const auto message = [](const auto& spoil, int64_t num_sequences = 1) {
    CacheLayer layer = FullCacheLayer(2, 64);
    layer.sinks = 4;
    layer.sink_dims = 128;
    spoil(layer);
    const auto layout = CacheLayout::Create({layer}, 1, num_sequences);
    EXPECT_EQ(layout.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(layout.status().message());
  };
  EXPECT_THAT(message([](CacheLayer& l) { l.sinks = -1; }), HasSubstr("-1 exact sinks"));
  EXPECT_THAT(message([](CacheLayer& l) { l.sinks = 65; }),
              AllOf(HasSubstr("65 exact sinks"), HasSubstr("64")));
  EXPECT_THAT(message([](CacheLayer& l) { l.sinks = 0; }), HasSubstr("0 exact sinks of 128 dims"));
  EXPECT_THAT(message([](CacheLayer& l) { l.sink_dims = 0; }),
              HasSubstr("4 exact sinks of 0 dims"));
  EXPECT_THAT(message([](CacheLayer& l) {
                l.sinks = 0;
                l.sink_dims = -128;
              }),
              HasSubstr("-128 dims"));
  EXPECT_THAT(message([](CacheLayer& l) { l.key_norms = -1; }), HasSubstr("key_norms is -1"));
  const auto nothing = [](CacheLayer&) {};
  EXPECT_THAT(message(nothing, 0), HasSubstr("0 sequences"));
  EXPECT_THAT(message(nothing, int64_t{1} << 55), HasSubstr("limit"));
  EXPECT_THAT(message([](CacheLayer& l) { l.own_page = true; }, int64_t{1} << 48),
              HasSubstr("limit"));
}

TEST(FullCacheLayer, RoundsTheHeadUp) {
  const CacheLayer layer = FullCacheLayer(2, 24, Codec::kF32);
  EXPECT_EQ(layer.k.dims(), 32);
  EXPECT_EQ(layer.v.dims(), 32);
  EXPECT_EQ(layer.k.order, TileOrder::kDimMajor);
  EXPECT_EQ(layer.v.order, TileOrder::kTokenMajor);
}

}  // namespace
}  // namespace latentd
