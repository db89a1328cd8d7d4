#include "engine/open_model.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#include "base/machine_memory.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::Each;
using ::testing::Ge;
using ::testing::HasSubstr;
using ::testing::Le;

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

// Random weights of every family with every kind of cache give numbers.
TEST(OpenModel, DummyWeightsCompute) {
  for (const char* family : {"llama", "qwen2", "qwen3", "gpt2", "bloom"}) {
    const std::string model = WriteTinyModel({.family = family, .layers = 8, .hidden = 64});
    std::filesystem::remove(model + "/model.safetensors");
    const ModelOptions options{
        .model = model, .dummy_weights = true, .threads = 1, .cache_bytes = 1 << 20};
    ModelOptions coded = options, latents = options;
    coded.cache_codec = "4";
    latents.dummy_latents = "50/75";
    for (const ModelOptions& each : {options, coded, latents}) {
      const auto opened = OpenModel(each, 1);
      ASSERT_TRUE(opened.ok()) << family << ": " << opened.status();
      Batch batch{.max_blocks = 2};
      std::vector<int32_t> tokens(100);
      for (int i = 0; i < 100; ++i) tokens[i] = i;
      const int row = AppendRows(&batch, tokens, 0, 100, {0, 1}, 0);
      ASSERT_TRUE(opened->engine->Step(batch).ok());
      const auto logits = opened->engine->Logits({row});
      ASSERT_TRUE(logits.ok()) << logits.status();
      EXPECT_THAT(*logits, Each(AllOf(Ge(-100.0f), Le(100.0f)))) << family;
      EXPECT_NE((*logits)[0], (*logits)[1]) << family;
    }
  }
}

TEST(OpenModel, LayersThatTheMachineCannotHoldAreRefused) {
  // 4096 layers of 7 square matrices of 16-bit numbers: more than twice the machine's memory.
  const double numbers = static_cast<double>(MachineMemory()) / (4096 * 7);
  const int dims = 64 * (static_cast<int>(std::sqrt(numbers) / 64) + 1);
  const std::string model = WriteTinyModel({}) + "/vast.json";
  std::ofstream(model) << R"({
    "architectures": ["LlamaForCausalLM"], "vocab_size": 10, "num_hidden_layers": 4096,
    "num_attention_heads": 32, "num_key_value_heads": 32, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "hidden_act": "silu",)"
                       << "\"hidden_size\": " << dims << ", \"intermediate_size\": " << dims << "}";
  const auto opened = OpenModel({.model = model, .dummy_weights = true, .threads = 1}, 1);
  EXPECT_TRUE(absl::IsResourceExhausted(opened.status())) << opened.status();
  EXPECT_THAT(std::string(opened.status().message()),
              ContainsRegex("the weights, 4096 layers, take .* of memory, this machine has "));
}

TEST(OpenModel, DummyLatentsSayWhatTheyTake) {
  const auto opened = OpenModel({.model = WriteTinyModel({.heads = 8, .kv_heads = 4}),
                                 .dummy_weights = true,
                                 .dummy_latents = "50/50",
                                 .threads = 1},
                                2);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const EngineInfo& info = opened->engine->info();
  // 2 layers x K and V x (32 dims of 4 bits and a scale); 32 of the 64 dims of four heads.
  EXPECT_EQ(info.bytes_per_token, 2 * 2 * (32 / 2 + 2));
  // 2 layers x K and V x (down of 32 x 32, up of 64 x 32) x 2 bytes.
  EXPECT_EQ(info.factor_bytes, 2 * 2 * (32 * 32 + 64 * 32) * 2);
  EXPECT_LE(info.pool_bytes, kDefaultCacheBytes);
  EXPECT_GT(info.pool_bytes, kDefaultCacheBytes - 64 * 100);
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
  EXPECT_THAT(error({.model = model, .dummy_latents = "50/50"}),
              HasSubstr("--dummy-latents is \"50/50\", which needs --dummy-weights"));
  EXPECT_THAT(
      error({.model = model, .cache_codec = "4", .dummy_weights = true, .dummy_latents = "50/50"}),
      HasSubstr("give no --latents and no --cache-codec beside it"));
  EXPECT_THAT(error({.model = model, .cache_bytes = 5, .cache_fraction = 0.5}),
              HasSubstr("--cache-fraction is 0.5 and --cache-bytes is 5"));
  EXPECT_THAT(error({.model = model, .cache_fraction = 0.5}), HasSubstr("use --cache-bytes"));
  EXPECT_THAT(error({.model = model, .cache_bytes = 5}),
              HasSubstr("--cache-bytes is 5, the smallest cache takes 16384"));
  EXPECT_THAT(error({.model = model, .max_context = 300}),
              HasSubstr("--max-context is 300, the model was made for 256"));
}

}  // namespace
}  // namespace latentd
