#include "kernels/codec.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "hwy/targets.h"
#include "kernels/dtype.h"
#include "tests/testing/random_values.h"

namespace latentd {
namespace {

constexpr Codec kSymmetric[] = {Codec::kInt8, Codec::kInt4, Codec::kInt3, Codec::kInt2};
constexpr Codec kMinMax[] = {Codec::kMinMax4, Codec::kMinMax3, Codec::kMinMax2};
constexpr Codec kScaled[] = {Codec::kInt8,    Codec::kInt4,    Codec::kInt3,   Codec::kInt2,
                             Codec::kMinMax4, Codec::kMinMax3, Codec::kMinMax2};

struct Encoded {
  CodeScale scale;
  std::vector<uint8_t> codes;
};

Encoded Encode(Codec codec, const std::vector<float>& row) {
  Encoded encoded{.scale = {}, .codes = std::vector<uint8_t>(row.size(), 0xAA)};
  encoded.scale = EncodeRow(codec, row, absl::MakeSpan(encoded.codes));
  return encoded;
}

std::vector<float> Decode(Codec codec, const Encoded& encoded) {
  std::vector<float> values;
  for (const uint8_t code : encoded.codes) {
    values.push_back(DecodeScale(codec, encoded.scale) * static_cast<float>(code) +
                     DecodeOffset(codec, encoded.scale));
  }
  return values;
}

double Dot(const std::vector<float>& a, const std::vector<float>& b) {
  return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
}

double SquaredError(const std::vector<float>& a, const std::vector<float>& b) {
  double sum = 0;
  for (size_t i = 0; i < a.size(); ++i) sum += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
  return sum;
}

// Squared error over energy, of 100,000 Gaussian values in rows of `dims`.
double NoiseOfGaussian(Codec codec, int dims) {
  double error = 0, energy = 0;
  for (int seed = 0; seed < 100'000 / dims; ++seed) {
    const std::vector<float> row = GaussianValues(dims, seed);
    error += SquaredError(row, Decode(codec, Encode(codec, row)));
    energy += SquaredError(row, std::vector<float>(row.size(), 0.0f));
  }
  return error / energy;
}

// ---- The definition, with plain loops ----

class PartialSums {
 public:
  void Add(size_t i, float value) { sums_[i % 16] += value; }
  float Total() {
    for (int half = 8; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) sums_[i] += sums_[half + i];
    }
    return sums_[0];
  }

 private:
  std::array<float, 16> sums_{};
};

float AsHalf(float value) { return HalfToFloat(FloatToHalf(std::min(value, 65504.0f))); }

float GridCode(float x, float scale, int bits) {
  const float inverse = scale > 0 ? 1.0f / scale : 0.0f;
  const float code = std::floor(x * inverse + static_cast<float>(1 << (bits - 1)));
  return std::clamp(code, 0.0f, static_cast<float>((1 << bits) - 1));
}

// The encoding of a finite row on the symmetric grid, as codec.h words it.
Encoded SymmetricDefinition(int bits, const std::vector<float>& row) {
  const float half_top = static_cast<float>((1 << bits) - 1) / 2;
  const float gaussian_step = bits == 2   ? 0.9957f
                              : bits == 3 ? 0.5860f
                              : bits == 4 ? 0.3352f
                                          : 0.0308f;
  PartialSums energy;
  float abs_max = 0;
  for (size_t i = 0; i < row.size(); ++i) {
    energy.Add(i, row[i] * row[i]);
    abs_max = std::max(abs_max, std::fabs(row[i]));
  }
  const float square = energy.Total();
  const float rms = std::sqrt(square / static_cast<float>(row.size()));
  const float full = abs_max / half_top, gaussian = rms * gaussian_step;
  const auto fit = [&](float from, float* kept) {
    PartialSums products, squares;
    for (size_t i = 0; i < row.size(); ++i) {
      const float g = GridCode(row[i], from, bits) - half_top;
      products.Add(i, row[i] * g);
      squares.Add(i, g * g);
    }
    const float product = products.Total(), scale = product / squares.Total();
    *kept = product * scale;
    return AsHalf(scale);
  };
  float best = 0, most_kept = -1, kept = 0;
  for (const float start :
       {full, 0.92f * full, 0.84f * full, 0.76f * full, gaussian, 0.88f * gaussian}) {
    const float scale = fit(start, &kept);
    if (kept > most_kept) {
      most_kept = kept;
      best = scale;
    }
  }
  best = fit(best, &kept);
  Encoded encoded;
  PartialSums products;
  for (size_t i = 0; i < row.size(); ++i) {
    const float code = GridCode(row[i], best, bits);
    encoded.codes.push_back(static_cast<uint8_t>(code));
    products.Add(i, row[i] * (code - half_top));
  }
  if (best > 0) encoded.scale.scale = FloatToHalf(std::min(square / products.Total(), 65504.0f));
  return encoded;
}

// A row of Gaussian values, every third one with an outlier, for which the absmax start matters.
std::vector<float> TestRow(int dims, uint64_t seed) {
  std::vector<float> row =
      GaussianValues(dims, seed, std::ldexp(1.0f, static_cast<int>(seed) * 2 - 20));
  if (seed % 3 == 0) row[seed % dims] *= 50.0f;
  return row;
}

TEST(Codec, SymmetricRowsAreTheDefinitionsBitForBit) {
  for (const Codec codec : kSymmetric) {
    for (const int dims : {16, 32, 48, 64, 80, 128, 576, 4096}) {
      for (uint64_t seed = 0; seed < 20; ++seed) {
        const std::vector<float> row = TestRow(dims, seed);
        const Encoded got = Encode(codec, row), want = SymmetricDefinition(Info(codec).bits, row);
        ASSERT_EQ(got.scale.scale, want.scale.scale)
            << Info(codec).name << " " << dims << " " << seed;
        ASSERT_EQ(got.codes, want.codes) << Info(codec).name << " " << dims << " " << seed;
        ASSERT_EQ(got.scale.zero, 0);
      }
    }
  }
}

TEST(Codec, EveryInstructionSetGivesTheSameCodes) {
  const int64_t supported = hwy::SupportedTargets();
  for (const Codec codec : kScaled) {
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const std::vector<float> row = TestRow(80, seed);
      const Encoded want = Encode(codec, row);
      for (int64_t targets = supported & HWY_TARGETS; targets != 0; targets &= targets - 1) {
        hwy::GetChosenTarget().Update(targets & -targets);
        const Encoded got = Encode(codec, row);
        const char* target = hwy::TargetName(targets & -targets);
        EXPECT_EQ(got.scale.scale, want.scale.scale) << Info(codec).name << " " << target;
        EXPECT_EQ(got.scale.zero, want.scale.zero) << Info(codec).name << " " << target;
        EXPECT_EQ(got.codes, want.codes) << Info(codec).name << " " << target;
      }
      hwy::GetChosenTarget().Update(supported);
    }
  }
}

TEST(Codec, MinMaxRowsSpanTheRange) {
  for (const Codec codec : kMinMax) {
    const int top = (1 << Info(codec).bits) - 1;
    for (uint64_t seed = 0; seed < 20; ++seed) {
      const std::vector<float> row = GaussianValues(96, seed, 3.0f);
      const auto [min, max] = std::minmax_element(row.begin(), row.end());
      const Encoded got = Encode(codec, row);
      EXPECT_EQ(got.scale.zero, FloatToHalf(*min));
      EXPECT_EQ(got.scale.scale, FloatToHalf((*max - *min) / static_cast<float>(top)));
      EXPECT_EQ(got.codes[min - row.begin()], 0);
      EXPECT_EQ(got.codes[max - row.begin()], top);
      const std::vector<float> decoded = Decode(codec, got);
      const float step = DecodeScale(codec, got.scale);
      for (size_t i = 0; i < row.size(); ++i) {
        EXPECT_NEAR(decoded[i], row[i], 0.5f * step + 0.01f)
            << Info(codec).name;  // the halves' rounding
      }
    }
  }
}

// The noise of codes without bias whose least squared error is that share of the energy: a row x
// and its grid values g at the angle a have the least error sin^2 a, and tan^2 a without bias.
double WithoutBias(double least) { return least / (1 - least); }

// The best uniform quantiser of a Gaussian (Max 1960) has .1188, .03744, .01154 at 2, 3, 4 bits. A
// scale fitted to each row does better, the more so the shorter the row.
TEST(Codec, NoiseOfGaussianRows) {
  EXPECT_NEAR(NoiseOfGaussian(Codec::kInt2, 256), WithoutBias(0.1174), 0.002);
  EXPECT_NEAR(NoiseOfGaussian(Codec::kInt3, 256), WithoutBias(0.0363), 0.0007);
  EXPECT_NEAR(NoiseOfGaussian(Codec::kInt4, 256), WithoutBias(0.0107), 0.0002);
  EXPECT_LT(NoiseOfGaussian(Codec::kInt8, 256), 0.0001);
  EXPECT_NEAR(NoiseOfGaussian(Codec::kMinMax2, 256), 0.299, 0.03);
  EXPECT_NEAR(NoiseOfGaussian(Codec::kMinMax3, 256), 0.055, 0.006);
  EXPECT_NEAR(NoiseOfGaussian(Codec::kMinMax4, 256), 0.0120, 0.0013);
}

// Rows as short as the segments of a mixed cache. The figures, least errors, are from NumPy in
// double precision, 2,000,000 values each, and never above those of long rows.
TEST(Codec, NoiseOfShortGaussianRows) {
  struct Noise {
    int dims;
    double int2, int3, int4;
  };
  for (const Noise& want :
       {Noise{32, 0.10717, 0.02909, 0.00723}, Noise{64, 0.11322, 0.03305, 0.00871},
        Noise{96, 0.11477, 0.03434, 0.00948}, Noise{192, 0.11691, 0.03602, 0.01043}}) {
    constexpr double kTolerance = 0.02;
    EXPECT_NEAR(NoiseOfGaussian(Codec::kInt2, want.dims) / WithoutBias(want.int2), 1.0, kTolerance)
        << want.dims;
    EXPECT_NEAR(NoiseOfGaussian(Codec::kInt3, want.dims) / WithoutBias(want.int3), 1.0, kTolerance)
        << want.dims;
    EXPECT_NEAR(NoiseOfGaussian(Codec::kInt4, want.dims) / WithoutBias(want.int4), 1.0, kTolerance)
        << want.dims;
  }
}

// Squared error with the best of 400 scales.
double LeastSquaredError(int bits, const std::vector<float>& row) {
  const double half_top = ((1 << bits) - 1) / 2.0;
  double abs_max = 0, least = std::numeric_limits<double>::infinity();
  for (const float x : row) abs_max = std::max(abs_max, std::fabs(double{x}));
  for (int step = 1; step <= 400; ++step) {
    const double scale = 1.3 * abs_max / half_top * step / 400;
    double error = 0;
    for (const float x : row) {
      const double grid = std::clamp(std::floor(x / scale) + 0.5, -half_top, half_top);
      error += (x - scale * grid) * (x - scale * grid);
    }
    least = std::min(least, error);
  }
  return least;
}

TEST(Codec, CodesAreCloseToTheBest) {
  struct Excess {
    Codec codec;
    double allowed;
  };
  for (const auto& [codec, allowed] :
       {Excess{Codec::kInt2, 0.005}, Excess{Codec::kInt3, 0.01}, Excess{Codec::kInt4, 0.015}}) {
    for (const int dims : {32, 64, 96, 192}) {
      double error = 0, least = 0;
      for (uint64_t seed = 0; seed < 100; ++seed) {
        const std::vector<float> row = GaussianValues(dims, seed);
        const std::vector<float> decoded = Decode(codec, Encode(codec, row));
        const double product = Dot(row, decoded);
        // Of the codes alone: the error with the best scale.
        error += Dot(row, row) - product * product / Dot(decoded, decoded);
        least += LeastSquaredError(Info(codec).bits, row);
      }
      EXPECT_GT(error, 0.99 * least) << Info(codec).name << " " << dims;
      EXPECT_LT(error, (1.0 + allowed) * least) << Info(codec).name << " " << dims;
    }
  }
}

// Up to the rounding of the scale to fp16, beside which the bias of 8 bits would not be seen.
TEST(Codec, ErrorsHaveNoPartAlongTheRow) {
  for (const Codec codec : {Codec::kInt4, Codec::kInt3, Codec::kInt2}) {
    for (const int dims : {16, 80, 192}) {
      for (uint64_t seed = 7; seed < 15; ++seed) {
        const std::vector<float> row = TestRow(dims, seed);
        const std::vector<float> decoded = Decode(codec, Encode(codec, row));
        EXPECT_NEAR(Dot(row, decoded) / Dot(row, row), 1.0, 0x1p-11)
            << Info(codec).name << " " << dims << " " << seed;
      }
    }
  }
}

TEST(Codec, ZerosOfBothSignsGiveOneZero) {
  for (const bool first : {false, true}) {
    std::vector<float> row(32, 1.0f);
    row[first ? 3 : 19] = -0.0f;
    row[first ? 19 : 3] = 0.0f;
    std::vector<uint8_t> codes(row.size());
    EXPECT_EQ(EncodeRow(Codec::kMinMax4, row, absl::MakeSpan(codes)).zero, 0);
    row.assign(32, -0.0f);
    EXPECT_EQ(EncodeRow(Codec::kMinMax4, row, absl::MakeSpan(codes)).zero, 0);
  }
}

TEST(Codec, RowsOnTheGridComeBackExactly) {
  for (const Codec codec : kSymmetric) {
    const int levels = 1 << Info(codec).bits;
    std::vector<float> row;
    for (int i = 0; i < std::max(levels, 16); ++i) {
      row.push_back(0.25f * (static_cast<float>(i % levels) - static_cast<float>(levels - 1) / 2));
    }
    EXPECT_EQ(Decode(codec, Encode(codec, row)), row) << Info(codec).name;
  }
}

TEST(Codec, CodesStayInRange) {
  for (const Codec codec : kScaled) {
    for (uint64_t seed = 0; seed < 50; ++seed) {
      std::vector<float> row = GaussianValues(64, seed);
      row[0] = seed % 2 == 0 ? 1000.0f : -1000.0f;
      for (const uint8_t code : Encode(codec, row).codes) EXPECT_LT(code, 1 << Info(codec).bits);
    }
  }
}

TEST(Codec, RowsOfZerosAreZeros) {
  for (const Codec codec : kScaled) {
    const std::vector<float> zeros(48, 0.0f);
    const Encoded encoded = Encode(codec, zeros);
    EXPECT_EQ(DecodeScale(codec, encoded.scale), 0.0f);
    EXPECT_EQ(Decode(codec, encoded), zeros) << Info(codec).name;
  }
}

TEST(Codec, ConstantRowsOfMinMaxAreTheConstant) {
  for (const Codec codec : kMinMax) {
    EXPECT_EQ(Decode(codec, Encode(codec, std::vector<float>(16, -1.5f))),
              std::vector<float>(16, -1.5f));
  }
}

TEST(Codec, ExtremeMagnitudesStayFinite) {
  for (const Codec codec : kScaled) {
    for (const float size : {1e-40f, 1e-30f, 1e-7f, 6e-5f, 1e5f, 1e9f, 1e25f, 3e38f}) {
      for (const float sign : {1.0f, -1.0f}) {
        std::vector<float> row = GaussianValues(32, 5, 1.0f);
        for (float& value : row) value = std::clamp(value, -1.0f, 1.0f) * size;
        row[7] = sign * size;
        for (const float value : Decode(codec, Encode(codec, row))) {
          EXPECT_TRUE(std::isfinite(value)) << Info(codec).name << " " << size;
        }
      }
    }
  }
}

TEST(Codec, NonFiniteRowsAreSeen) {
  for (const Codec codec : kScaled) {
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      for (const int at : {0, 1, 17, 63}) {
        std::vector<float> row = GaussianValues(64, 9);
        row[at] = bad;
        for (const float value : Decode(codec, Encode(codec, row))) {
          EXPECT_TRUE(std::isnan(value)) << Info(codec).name << " " << bad << " at " << at;
        }
      }
    }
  }
}

TEST(Codec, NamesParseBack) {
  for (int i = 0; i <= static_cast<int>(Codec::kMinMax2); ++i) {
    const Codec codec = static_cast<Codec>(i);
    EXPECT_EQ(ParseCodec(Info(codec).name), codec);
  }
  EXPECT_EQ(ParseCodec("int5"), std::nullopt);
  EXPECT_EQ(ParseCodec(""), std::nullopt);
}

TEST(Codec, AGridHasItsBits) {
  for (const int bits : {8, 4, 3, 2}) {
    ASSERT_TRUE(GridCodec(bits).has_value()) << bits;
    EXPECT_EQ(Info(*GridCodec(bits)).bits, bits);
    EXPECT_EQ(Info(*GridCodec(bits)).scale_bytes, 2);  // a scale, no zero
  }
  for (const int bits : {0, 1, 5, 16, -4}) EXPECT_EQ(GridCodec(bits), std::nullopt) << bits;
}

}  // namespace
}  // namespace latentd
