#include "kernels/cpu/pack_row.h"

#include <vector>

#include "gtest/gtest.h"
#include "kernels/dtype.h"
#include "tests/kernels/cpu/vector_targets.h"
#include "tests/testing/attention_case.h"

namespace latentd {
namespace {

constexpr TileOrder kOrders[] = {TileOrder::kDimMajor, TileOrder::kTokenMajor};

void ExpectTheDefinition(const CachePlane& plane) {
  std::vector<uint8_t> want(plane.head_bytes(), 0xFF), got = want;
  std::vector<float> read(plane.dims()), decoded(plane.dims());
  for (const int token : {0, 1, 31, 63}) {
    const std::vector<float> row = GaussianValues(plane.dims(), token, 1.0f + token);
    WriteCacheRow(plane, want.data(), token, row);
    PackRow(plane, row.data(), token, got.data(), decoded.data());
    EXPECT_EQ(got, want) << "token " << token;
    ReadCacheRow(plane, want.data(), token, absl::MakeSpan(read));
    EXPECT_EQ(decoded, read) << "token " << token;
    PackRow(plane, row.data(), token, got.data(), nullptr);
    EXPECT_EQ(got, want) << "token " << token;
  }
}

TEST(PackRow, IsTheDefinitionForEveryCodecAndOrder) {
  ForEachVectorTarget([] {
    for (const Codec codec : kAllCodecs) {
      for (const TileOrder order : kOrders) {
        SCOPED_TRACE(Info(codec).name);
        ExpectTheDefinition({.segments = {{.dims = 48, .codec = codec}}, .order = order});
      }
    }
  });
}

TEST(PackRow, IsTheDefinitionForMixedSegments) {
  for (const TileOrder order : kOrders) {
    ExpectTheDefinition({.segments = {{.dims = 16, .codec = Codec::kInt8},
                                      {.dims = 32, .codec = Codec::kInt3},
                                      {.dims = 16, .codec = Codec::kF16},
                                      {.dims = 16, .codec = Codec::kF32},
                                      {.dims = 64, .codec = Codec::kInt2},
                                      {.dims = 16, .codec = Codec::kMinMax3}},
                         .order = order});
  }
}

TEST(PackHalves, RoundsEveryCount) {
  ForEachVectorTarget([] {
    for (const int count : {1, 15, 16, 24, 40}) {
      const std::vector<float> values = GaussianValues(count, count);
      std::vector<uint16_t> halves(count + 1, 0xFFFF);
      PackHalves(values.data(), count, halves.data());
      for (int i = 0; i < count; ++i) EXPECT_EQ(halves[i], FloatToHalf(values[i]));
      EXPECT_EQ(halves[count], 0xFFFF);
    }
  });
}

}  // namespace
}  // namespace latentd
