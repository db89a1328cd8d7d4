#include "engine/model/dummy_latents.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

ModelConfig ConfigOf(int kv_heads, int head_dim) {
  return {.num_layers = 2,
          .hidden_dim = 64,
          .num_heads = 2 * kv_heads,
          .num_kv_heads = kv_heads,
          .head_dim = head_dim};
}

TEST(DummyLatentsTest, TheSharesAreOfTheDimsOfAGroup) {
  const auto latents = MakeDummyLatents(ConfigOf(8, 128), "25/75");
  ASSERT_TRUE(latents.ok()) << latents.status();
  ASSERT_EQ((*latents)->layers.size(), 2u);
  const LatentLayer& layer = (*latents)->layers[1];
  EXPECT_EQ(layer.cache.k.latent_heads, 2);
  EXPECT_EQ(layer.cache.k.segments, (std::vector<Segment>{{128, Codec::kInt4}}));
  EXPECT_EQ(layer.cache.v.segments, (std::vector<Segment>{{384, Codec::kInt4}}));
  EXPECT_EQ(layer.cache.sinks, 4);
  EXPECT_TRUE(layer.cache.own_page);
  EXPECT_EQ(layer.k_down.rows, 2 * 128);
  EXPECT_EQ(layer.k_down.cols, 64);
  EXPECT_EQ(layer.v_up.rows, 8 * 128);
  EXPECT_EQ(layer.v_up.cols, 384);
}

TEST(DummyLatentsTest, GroupsAreThoseOfLatentCompress) {
  const auto groups_of = [](int kv_heads) {
    return (*MakeDummyLatents(ConfigOf(kv_heads, 64), "50/50"))->layers[0].cache.k.latent_heads;
  };
  EXPECT_EQ(groups_of(8), 2);
  EXPECT_EQ(groups_of(6), 2);
  EXPECT_EQ(groups_of(10), 5);
  EXPECT_EQ(groups_of(5), 1);
  EXPECT_EQ(groups_of(1), 1);
}

TEST(DummyLatentsTest, APlaneHasATileAtLeast) {
  const auto latents = MakeDummyLatents(ConfigOf(1, 32), "1/100");
  EXPECT_EQ((*latents)->layers[0].cache.k.dims(), 16);
  EXPECT_EQ((*latents)->layers[0].cache.v.dims(), 32);
}

TEST(DummyLatentsTest, FactorsThatTheMachineCannotHoldAreRefused) {
  ModelConfig config = ConfigOf(4096, 4096);
  config.hidden_dim = 1 << 20;
  const absl::Status status = MakeDummyLatents(config, "100/100").status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("of memory, this machine has"));
}

TEST(DummyLatentsTest, OtherSharesAreRefused) {
  for (const char* text : {"", "50", "50/50/50", "0/50", "50/101", "a/b", "50/nan", "-1/50"}) {
    const absl::Status status = MakeDummyLatents(ConfigOf(4, 32), text).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << text;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr("--dummy-latents is \"" + std::string(text) + "\""));
  }
}

}  // namespace
}  // namespace latentd
