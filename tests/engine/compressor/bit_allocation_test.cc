#include "engine/compressor/bit_allocation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>

#include "engine/model/hadamard.h"
#include "gtest/gtest.h"
#include "tests/testing/random_values.h"

namespace latentd {
namespace {

// Dims as a real plane has them: the energy falls over orders of magnitude, the weight with it.
DimEnergies Falling(int dims, double slope, double scale = 1) {
  DimEnergies out;
  for (int i = 0; i < dims; ++i) {
    out.weight.push_back(scale * std::exp(-slope * i / dims));
    out.variance.push_back(scale * std::exp(-slope * i / dims));
  }
  return out;
}

std::vector<std::vector<DimEnergies>> Planes(int count, int dims, int heads = 1) {
  std::vector<std::vector<DimEnergies>> planes;
  for (int p = 0; p < count; ++p) {
    planes.emplace_back();
    for (int h = 0; h < heads; ++h) {
      planes.back().push_back(Falling(dims, 1.5 + 0.31 * (p % 7) + 0.1 * h, 1 + p % 5));
    }
  }
  return planes;
}

int64_t Bytes(const PlaneAllocation& plane, int heads) {
  return CachePlane{.latent_heads = heads, .segments = plane.segments}.plane_bytes();
}

double TotalCost(const std::vector<PlaneAllocation>& allocation) {
  double cost = 0;
  for (const PlaneAllocation& plane : allocation) cost += plane.predicted_kl;
  return cost;
}

// What an allocation really costs: Gaussian latents, rotated, coded, decoded, turned back.
double MeasuredCost(const DimEnergies& dims, const std::vector<Segment>& segments, int tokens) {
  double cost = 0;
  int begin = 0;
  for (const Segment& segment : segments) {
    const int n = segment.dims;
    const std::vector<double> rotation = HadamardRotation(n);
    const std::vector<float> gaussian = GaussianValues(int64_t{tokens} * n, 9 + begin);
    std::vector<float> row(n);
    std::vector<uint8_t> codes(n);
    for (int t = 0; t < tokens; ++t) {
      std::vector<double> latent(n);
      for (int i = 0; i < n; ++i) {
        latent[i] = gaussian[t * n + i] * std::sqrt(dims.variance[begin + i]);
      }
      for (int r = 0; r < n; ++r) {
        row[r] = static_cast<float>(std::inner_product(
            latent.begin(), latent.end(), rotation.begin() + static_cast<int64_t>(r) * n, 0.0));
      }
      const CodeScale scale = EncodeRow(segment.codec, row, absl::MakeSpan(codes));
      std::vector<double> error(n);
      for (int r = 0; r < n; ++r) {
        const double e = row[r] - (DecodeScale(segment.codec, scale) * codes[r] +
                                   DecodeOffset(segment.codec, scale));
        for (int i = 0; i < n; ++i) error[i] += rotation[r * n + i] * e;
      }
      for (int i = 0; i < n; ++i) {
        cost += dims.weight[begin + i] * error[i] * error[i] / 2 / tokens;
      }
    }
    begin += n;
  }
  for (size_t i = begin; i < dims.weight.size(); ++i) {
    cost += dims.weight[i] * dims.variance[i] / 2;
  }
  return cost;
}

TEST(CodeError, IsTheGridsKnownError) {
  // Grids fitted to rows of 256 Gaussian values leave an error e of .1174, .0363, .0107
  // (codec_test); without bias it is e / (1 - e).
  EXPECT_NEAR(CodeError(Codec::kInt2, 256), 0.1330, 0.003);
  EXPECT_NEAR(CodeError(Codec::kInt3, 256), 0.0377, 0.001);
  EXPECT_NEAR(CodeError(Codec::kInt4, 256), 0.0108, 0.0003);
  EXPECT_LT(CodeError(Codec::kInt8, 256), 2e-4);
  // A scale fits a short row more closely.
  EXPECT_LT(CodeError(Codec::kInt2, 16), 0.95 * CodeError(Codec::kInt2, 256));
}

TEST(AllocateBits, PredictsWhatTheCodecDoesToGaussianLatents) {
  const std::vector<std::vector<DimEnergies>> planes = {{Falling(192, 4)}};
  for (const double bytes : {40, 56, 72, 100, 140, 190}) {
    const auto allocation = AllocateBits(planes, {.widths = {8, 4, 3, 2}, .block_dims = 16}, 1,
                                         static_cast<int64_t>(bytes * kBlockTokens));
    const double measured = MeasuredCost(planes[0][0], allocation[0].segments, 400);
    EXPECT_NEAR(allocation[0].predicted_kl / measured, 1, 0.1) << bytes;
  }
}

TEST(AllocateBits, MeetsTheBudgetFromBelow) {
  for (const double ratio : {2.2, 4.0, 5.3, 7.7, 10.0}) {
    for (const int heads : {1, 3}) {
      const auto planes = Planes(60, 192, heads);
      const auto budget = static_cast<int64_t>(60 * heads * 192 * 2 / ratio * kBlockTokens);
      for (const BitWidths& widths : {BitWidths{.widths = {8, 4, 2}, .block_dims = 32},
                                      BitWidths{.widths = {8, 4, 3, 2}, .block_dims = 16}}) {
        int64_t bytes = 0;
        for (const PlaneAllocation& plane : AllocateBits(planes, widths, 1, budget)) {
          bytes += Bytes(plane, heads);
          for (size_t s = 1; s < plane.segments.size(); ++s) {
            EXPECT_LT(plane.segments[s].codec, Codec::kMinMax4);
            EXPECT_GT(plane.segments[s].codec, plane.segments[s - 1].codec) << "widths never rise";
          }
        }
        EXPECT_LE(bytes, budget);
        EXPECT_GE(static_cast<double>(bytes), 0.999 * static_cast<double>(budget)) << ratio;
      }
    }
  }
}

// What the header says that segments cost.
double CostOf(const DimEnergies& dims, const std::vector<Segment>& segments, double code_share) {
  double cost = 0;
  int at = 0;
  for (const Segment& segment : segments) {
    double weight = 0, variance = 0;
    for (int i = at; i < at + segment.dims; ++i) {
      weight += dims.weight[i];
      variance += dims.variance[i];
    }
    cost += code_share * CodeError(segment.codec, segment.dims) * weight * variance /
            (2 * segment.dims);
    at += segment.dims;
  }
  for (size_t i = at; i < dims.weight.size(); ++i) cost += dims.weight[i] * dims.variance[i] / 2;
  return cost;
}

// All recipes of one plane; some of them take the same bytes.
TEST(AllocateBits, NoRecipeOfAPlaneCostsLess) {
  constexpr int kBlocks = 6, kBlockDims = 16;
  const BitWidths widths{.widths = {8, 4, 2}, .block_dims = kBlockDims};
  const DimEnergies dims = Falling(kBlocks * kBlockDims, 4);
  std::vector<PlaneAllocation> recipes;
  for (int a = 0; a <= kBlocks; ++a) {
    for (int b = a; b <= kBlocks; ++b) {
      for (int c = std::max(b, 1); c <= kBlocks; ++c) {
        PlaneAllocation& recipe = recipes.emplace_back();
        for (const auto& [blocks, codec] :
             {std::pair{a, Codec::kInt8}, {b - a, Codec::kInt4}, {c - b, Codec::kInt2}}) {
          if (blocks > 0) recipe.segments.push_back({.dims = blocks * kBlockDims, .codec = codec});
        }
      }
    }
  }
  for (const double code_share : {1.0, 0.3}) {
    for (PlaneAllocation& recipe : recipes) {
      recipe.predicted_kl = CostOf(dims, recipe.segments, code_share);
    }
    for (const PlaneAllocation& limit : recipes) {
      const int64_t budget = Bytes(limit, 1);
      double least = std::numeric_limits<double>::infinity();
      for (const PlaneAllocation& recipe : recipes) {
        if (Bytes(recipe, 1) <= budget) least = std::min(least, recipe.predicted_kl);
      }
      const auto chosen = AllocateBits({{dims}}, widths, code_share, budget);
      EXPECT_LE(Bytes(chosen[0], 1), budget);
      EXPECT_NEAR(chosen[0].predicted_kl / least, 1, 1e-9) << budget;
      EXPECT_NEAR(CostOf(dims, chosen[0].segments, code_share) / least, 1, 1e-9) << budget;
    }
  }
}

// All pairs of recipes of two small planes, by budgets that single planes show the cost of.
TEST(AllocateBits, NoChoiceCostsLess) {
  const BitWidths widths{.widths = {4, 2}, .block_dims = 16};
  const auto planes = Planes(2, 80);
  std::vector<std::vector<std::pair<int64_t, double>>> choices(2);
  const PlaneBounds bounds = BoundsOf(widths, 1, 80);
  for (int p = 0; p < 2; ++p) {
    for (int64_t bytes = bounds.smallest; bytes <= bounds.largest; bytes += 128) {
      const auto alone = AllocateBits({planes[p]}, widths, 1, bytes);
      choices[p].push_back({Bytes(alone[0], 1), alone[0].predicted_kl});
    }
  }
  for (int64_t budget = 2 * bounds.smallest; budget <= 2 * bounds.largest; budget += 128) {
    double least = std::numeric_limits<double>::infinity();
    for (const auto& a : choices[0]) {
      for (const auto& b : choices[1]) {
        if (a.first + b.first <= budget) least = std::min(least, a.second + b.second);
      }
    }
    EXPECT_NEAR(TotalCost(AllocateBits(planes, widths, 1, budget)), least, 1e-12) << budget;
  }
}

TEST(AllocateBits, MoreBytesCostLessAndMoreWidthsDoToo) {
  const auto planes = Planes(8, 128);
  double before = std::numeric_limits<double>::infinity();
  for (int64_t budget = 8 * 40 * kBlockTokens; budget < 8 * 120 * kBlockTokens; budget += 20000) {
    const double cost = TotalCost(AllocateBits(planes, {{8, 4, 2}, 32}, 1, budget));
    EXPECT_LE(cost, before);
    EXPECT_LE(TotalCost(AllocateBits(planes, {{8, 4, 3, 2}, 16}, 1, budget)), cost);
    before = cost;
  }
}

TEST(AllocateBits, CheapCodesGiveTheirBitsToMoreDims) {
  const auto planes = Planes(1, 192);
  const BitWidths widths{.widths = {8, 4, 3, 2}, .block_dims = 16};
  const int64_t budget = 48 * kBlockTokens;
  const auto dims = [](const PlaneAllocation& plane) {
    return CachePlane{.latent_heads = 1, .segments = plane.segments}.dims();
  };
  const auto full = AllocateBits(planes, widths, 1, budget);
  const auto cheap = AllocateBits(planes, widths, 0.1, budget);
  EXPECT_GT(dims(cheap[0]), dims(full[0]));
  // The recipe of full code errors was open to it as well.
  EXPECT_LT(cheap[0].predicted_kl, full[0].predicted_kl);
  EXPECT_GT(MeasuredCost(planes[0][0], cheap[0].segments, 400), full[0].predicted_kl * 0.9);
}

TEST(AllocateBits, ServesTheBoundsThemselves) {
  const BitWidths widths{.widths = {8, 2}, .block_dims = 32};
  const auto planes = Planes(3, 80);  // the last block has 16 dims
  const PlaneBounds bounds = BoundsOf(widths, 1, 80);
  const auto least = AllocateBits(planes, widths, 1, 3 * bounds.smallest);
  EXPECT_EQ(least[0].segments, (std::vector<Segment>{{32, Codec::kInt2}}));
  const auto most = AllocateBits(planes, widths, 1, 3 * bounds.largest);
  EXPECT_EQ(most[2].segments, (std::vector<Segment>{{80, Codec::kInt8}}));
}

}  // namespace
}  // namespace latentd
