#include "engine/open_model.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

TEST(OpenModel, TheEngineHasTheContextAndBlocksThatWereAskedFor) {
  const auto opened = OpenModel(
      {.model = WriteTinyModel({}), .threads = 1, .cache_bytes = 1 << 20, .max_context = 100}, 1);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(opened->latents, nullptr);
  EXPECT_EQ(opened->engine->info().max_context, 100);
  // 2 layers x 2 planes x 2 heads x 16 dims x 2 bytes x 64 tokens.
  EXPECT_EQ(opened->engine->info().num_blocks, (1 << 20) / (2 * 2 * 2 * 16 * 2 * 64));
}

TEST(OpenModel, ACodecMakesAPlainQuantisedCache) {
  const std::string model = WriteTinyModel({});
  for (const auto& [codec, bits] : {std::pair("8", 8), {"4", 4}, {"3", 3}, {"2", 2}}) {
    const auto opened =
        OpenModel({.model = model, .cache_codec = codec, .threads = 1, .cache_bytes = 1 << 20}, 3);
    ASSERT_TRUE(opened.ok()) << opened.status();
    const EngineInfo& info = opened->engine->info();
    // 2 layers x 2 planes x 2 heads x (16 dims and a scale).
    EXPECT_EQ(info.bytes_per_token, 2 * 2 * 2 * (16 * bits / 8 + 2)) << codec;
    // 2 layers x 4 sinks x 2 planes x 32 dims x 2 bytes.
    EXPECT_EQ(info.bytes_per_sequence, 2 * 4 * 2 * 32 * 2) << codec;
    EXPECT_EQ(info.cache_name, std::string(codec) + "-bit codes, full rank, Hadamard");
    EXPECT_EQ(info.num_sequences, 3);
  }
}

TEST(OpenModel, AnErrorNamesTheFlagToChange) {
  const auto error = [](const ModelOptions& options) {
    return std::string(OpenModel(options, 1).status().message());
  };
  const std::string model = WriteTinyModel({});
  EXPECT_THAT(error({}), HasSubstr("--model is missing"));
  EXPECT_THAT(error({.model = "/no/model.gguf"}), HasSubstr("/no/model.gguf"));
  EXPECT_THAT(error({.model = model, .latents = "/no/latents"}), HasSubstr("/no/latents"));
  EXPECT_THAT(error({.model = model, .latents = model + "/model.safetensors"}),
              HasSubstr("no latents file"));
  EXPECT_THAT(error({.model = model, .cache_codec = "5"}), HasSubstr("--cache-codec is \"5\""));
  EXPECT_THAT(error({.model = model, .latents = "x.latents", .cache_codec = "4"}),
              HasSubstr("--cache-codec is 4 and --latents is \"x.latents\""));
  EXPECT_THAT(error({.model = model, .device = "tpu"}), HasSubstr("--device is \"tpu\""));
  EXPECT_THAT(error({.model = model, .device = "cuda"}),
              HasSubstr("allowed: cpu, reference, cuda:0"));
  EXPECT_THAT(error({.model = model, .device = "cuda:999"}), HasSubstr("cuda:999"));
  EXPECT_THAT(error({.model = model, .cache_bytes = 5}),
              HasSubstr("--cache-bytes is 5, the smallest cache takes 16384"));
  EXPECT_THAT(error({.model = model, .max_context = 300}),
              HasSubstr("--max-context is 300, the model was made for 256"));
}

}  // namespace
}  // namespace latentd
