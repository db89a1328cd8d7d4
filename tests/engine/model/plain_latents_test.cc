#include "engine/model/plain_latents.h"

#include <cmath>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

std::vector<float> Row(const TensorView& view, int64_t row) {
  std::vector<float> values(view.cols);
  DequantizeRow(view, row, absl::MakeSpan(values));
  return values;
}

// up x down of one head is its projection, for heads of whole tiles and others, on any number of
// threads, and Qwen2's bias is in neither.
TEST(PlainLatents, FactorsMultiplyToTheProjections) {
  for (const int head_dim : {16, 20, 48}) {
    const auto base = *Checkpoint::Open(WriteTinyModel(
        {.family = "qwen2", .hidden = 100, .head_dim = head_dim, .dtype = DType::kBF16}));
    const auto latents = MakePlainLatents(*base, 4, /*threads=*/head_dim / 16);
    ASSERT_TRUE(latents.ok()) << latents.status();
    const LatentLayer& layer = (*latents)->layers[1];
    const int dims = layer.cache.k.dims();
    EXPECT_EQ(dims, (head_dim + 15) / 16 * 16);
    const struct {
      const char* name;
      const TensorView &down, &up;
    } planes[] = {{"layers.1.k.weight", layer.k_down, layer.k_up},
                  {"layers.1.v.weight", layer.v_down, layer.v_up}};
    for (const auto& [name, down, up] : planes) {
      ASSERT_EQ(down.rows, 2 * dims);
      ASSERT_EQ(up.rows, 2 * head_dim);
      for (int64_t r = 0; r < up.rows; ++r) {
        const std::vector<float> expected = Row(*base->Find(name), r), factors = Row(up, r);
        std::vector<float> product(expected.size());
        for (int d = 0; d < dims; ++d) {
          const std::vector<float> latent = Row(down, r / head_dim * dims + d);
          for (size_t i = 0; i < product.size(); ++i) product[i] += factors[d] * latent[i];
        }
        for (size_t i = 0; i < product.size(); ++i) {
          ASSERT_NEAR(product[i], expected[i], 1e-3) << name << " " << r << " " << i;
        }
      }
    }
  }
}

TEST(PlainLatents, OneSegmentOfTheAskedCodeAndFourSinks) {
  const auto base = *Checkpoint::Open(WriteTinyModel({}));
  const auto latents = MakePlainLatents(*base, 3);
  ASSERT_TRUE(latents.ok()) << latents.status();
  EXPECT_EQ((*latents)->method, "3-bit codes, full rank, Hadamard");
  ASSERT_EQ((*latents)->layers.size(), 2u);
  const CacheLayer& cache = (*latents)->layers[0].cache;
  EXPECT_EQ(cache.k.latent_heads, 2);
  EXPECT_THAT(cache.k.segments, ::testing::ElementsAre(Segment{16, Codec::kInt3}));
  EXPECT_EQ(cache.v.segments, cache.k.segments);
  EXPECT_EQ(cache.sinks, 4);
  EXPECT_EQ(cache.sink_dims, 32);
  EXPECT_FALSE(cache.own_page);
  EXPECT_EQ((*latents)->layers[0].k_mean.data, nullptr);
  EXPECT_THAT(std::string(MakePlainLatents(*base, 5).status().message()),
              ::testing::HasSubstr("5 bits"));
}

// The rotation spreads a dim that is far larger than the others.
TEST(PlainLatents, OneLargeDimIsSharedByAll) {
  const auto base = *Checkpoint::Open(WriteTinyModel({}));
  const auto latents = MakePlainLatents(*base, 4);
  const TensorView up = (*latents)->layers[0].k_up;
  for (int64_t r = 0; r < up.rows; ++r) {
    for (const float value : Row(up, r)) EXPECT_FLOAT_EQ(std::abs(value), 0.25f);
  }
}

}  // namespace
}  // namespace latentd
