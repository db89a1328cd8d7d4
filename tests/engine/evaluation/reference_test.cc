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

}  // namespace
}  // namespace latentd
