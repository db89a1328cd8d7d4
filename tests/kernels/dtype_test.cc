#include "kernels/dtype.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/kernels/dtype_goldens.h"
#include "tests/testing/random_values.h"

namespace latentd {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

// The value that the IEEE standard gives to the bits of a half.
double DefinitionOfHalf(uint16_t bits) {
  const int exponent = (bits >> 10) & 31, fraction = bits & 1023;
  double magnitude;
  if (exponent == 31) {
    magnitude = fraction == 0 ? INFINITY : NAN;
  } else if (exponent == 0) {
    magnitude = std::ldexp(fraction, -24);
  } else {
    magnitude = std::ldexp(1024 + fraction, exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -magnitude : magnitude;
}

TEST(Half, EveryHalfHasItsValueAndComesBack) {
  for (int bits = 0; bits < 65536; ++bits) {
    const double want = DefinitionOfHalf(static_cast<uint16_t>(bits));
    const float got = HalfToFloat(static_cast<uint16_t>(bits));
    if (std::isnan(want)) {
      EXPECT_TRUE(std::isnan(got)) << bits;
      EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(got)))) << bits;
      continue;
    }
    ASSERT_EQ(got, want) << bits;
    ASSERT_EQ(std::signbit(got), (bits & 0x8000) != 0) << bits;
    ASSERT_EQ(FloatToHalf(got), bits);
  }
}

TEST(Half, RoundsToNearestAndTiesToEven) {
  for (int bits = 0; bits < 0x7bff; ++bits) {
    const float low = HalfToFloat(static_cast<uint16_t>(bits));
    const float high = HalfToFloat(static_cast<uint16_t>(bits + 1));
    const float middle = low + (high - low) / 2;
    ASSERT_EQ(FloatToHalf(middle), bits + bits % 2);
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, 0.0f)), bits);
    ASSERT_EQ(FloatToHalf(std::nextafter(middle, kInfinity)), bits + 1);
    ASSERT_EQ(FloatToHalf(-middle), 0x8000 | (bits + bits % 2));
  }
}

TEST(Half, OverflowsAtHalfAStepAboveTheLargest) {
  EXPECT_EQ(FloatToHalf(65504.0f), 0x7bff);
  EXPECT_EQ(FloatToHalf(std::nextafter(65520.0f, 0.0f)), 0x7bff);
  EXPECT_EQ(FloatToHalf(65520.0f), 0x7c00);
  EXPECT_EQ(FloatToHalf(std::numeric_limits<float>::max()), 0x7c00);
  EXPECT_EQ(FloatToHalf(-kInfinity), 0xfc00);
  EXPECT_EQ(FloatToHalf(std::numeric_limits<float>::denorm_min()), 0);
  // A NaN whose payload a half cannot hold stays a NaN.
  EXPECT_TRUE(std::isnan(HalfToFloat(FloatToHalf(std::bit_cast<float>(0x7f800001u)))));
}

TEST(DType, QuantizedRowsHaveTheValuesOfGguf) {
  ASSERT_EQ(DTypeGoldens().size(), 8u);
  for (const DTypeGolden& golden : DTypeGoldens()) {
    const char* name = Info(golden.dtype).name;
    const int64_t cols = static_cast<int64_t>(golden.values.size());
    ASSERT_EQ(RowBytes(golden.dtype, cols), static_cast<int64_t>(golden.row.size())) << name;
    EXPECT_TRUE(IsQuantized(golden.dtype));
    const TensorView view{.dtype = golden.dtype,
                          .rows = 1,
                          .cols = cols,
                          .data = reinterpret_cast<const std::byte*>(golden.row.data())};
    std::vector<float> got(cols);
    DequantizeRow(view, 0, absl::MakeSpan(got));
    for (int64_t i = 0; i < cols; ++i) {
      ASSERT_EQ(got[i], std::bit_cast<float>(golden.values[i])) << name << ", value " << i;
    }
  }
}

TEST(DType, EveryRowOfAMatrixIsItsOwn) {
  for (const DTypeGolden& golden : DTypeGoldens()) {
    const int64_t cols = Info(golden.dtype).block_size;
    const TensorView whole{.dtype = golden.dtype,
                           .rows = static_cast<int64_t>(golden.values.size()) / cols,
                           .cols = cols,
                           .data = reinterpret_cast<const std::byte*>(golden.row.data())};
    EXPECT_EQ(whole.bytes(), static_cast<int64_t>(golden.row.size()));
    std::vector<float> got(cols);
    for (int64_t r = 0; r < whole.rows; ++r) {
      DequantizeRow(whole, r, absl::MakeSpan(got));
      for (int64_t i = 0; i < cols; ++i) {
        ASSERT_EQ(got[i], std::bit_cast<float>(golden.values[r * cols + i]))
            << Info(golden.dtype).name;
      }
    }
  }
}

TEST(DType, UnquantizedRowsAreTheirValues) {
  const std::vector<float> values = GaussianValues(2 * 5, 3);
  std::vector<uint16_t> halves, brains;
  for (const float value : values) {
    halves.push_back(FloatToHalf(value));
    brains.push_back(static_cast<uint16_t>(std::bit_cast<uint32_t>(value) >> 16));
  }
  const auto second_row = [](DType dtype, const void* data) {
    const TensorView view{
        .dtype = dtype, .rows = 2, .cols = 5, .data = static_cast<const std::byte*>(data)};
    EXPECT_FALSE(IsQuantized(dtype));
    std::vector<float> row(5);
    DequantizeRow(view, 1, absl::MakeSpan(row));
    return row;
  };
  EXPECT_EQ(second_row(DType::kF32, values.data()),
            std::vector<float>(values.begin() + 5, values.end()));
  for (int i = 0; i < 5; ++i) {
    EXPECT_EQ(second_row(DType::kF16, halves.data())[i], HalfToFloat(halves[5 + i]));
    EXPECT_EQ(second_row(DType::kBF16, brains.data())[i],
              std::bit_cast<float>(std::bit_cast<uint32_t>(values[5 + i]) & 0xffff0000u));
  }
}

}  // namespace
}  // namespace latentd
