#include "engine/evaluation/reference.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

TEST(Reference, IsTheUncompressedCacheOfTheSameOrAnotherModelOrALatentsFile) {
  const EvaluationModel measured{
      .model = {.model = WriteTinyModel({}), .cache_codec = "4", .threads = 1}};
  const auto full = OpenReference("full", measured, 2);
  ASSERT_TRUE(full.ok()) << full.status();
  EXPECT_EQ(full->latents, nullptr);
  EXPECT_EQ(full->engine->info().cache_name, "full f16");
  EXPECT_EQ(full->engine->info().num_sequences, 2);

  const auto other = OpenReference(WriteTinyModel({.layers = 3}), measured, 1);
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_EQ(other->engine->info().num_layers, 3);
  EXPECT_EQ(other->engine->info().cache_name, "full f16");

  EXPECT_THAT(OpenReference("none.latents", measured, 1).status().message(),
              HasSubstr("none.latents"));
}

TEST(Reference, ACacheIsNotComparedWithItself) {
  const EvaluationModel full{.model = {.model = "m.gguf"}};
  EXPECT_EQ(CheckReference("full", full).message(),
            "--reference is \"full\", --latents is \"\" and --cache-codec is 16: that compares a "
            "cache with itself, give another");
  EXPECT_TRUE(absl::IsInvalidArgument(CheckReference("m.gguf", full)));
  EXPECT_TRUE(CheckReference("other.gguf", full).ok());
  EXPECT_TRUE(CheckReference("m.latents", full).ok());
  const EvaluationModel coded{.model = {.model = "m.gguf", .cache_codec = "4"}};
  EXPECT_TRUE(CheckReference("full", coded).ok());
  const EvaluationModel latents{.model = {.model = "m.gguf", .latents = "m.latents"}};
  EXPECT_TRUE(CheckReference("full", latents).ok());
  EXPECT_TRUE(absl::IsInvalidArgument(CheckReference("m.latents", latents)));
}

}  // namespace
}  // namespace latentd
