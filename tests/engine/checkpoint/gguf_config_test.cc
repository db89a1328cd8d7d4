#include "engine/checkpoint/gguf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/engine/checkpoint/gguf_builder.h"

namespace latentd {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using Scaling = RopeConfig::Scaling;

// The keys of a tiny llama, and its embedding of 10 x 32.
GgufBuilder Llama() {
  GgufBuilder builder;
  builder.String("general.architecture", "llama")
      .String("general.name", "Tiny")
      .U32("llama.block_count", 2)
      .U32("llama.embedding_length", 32)
      .U32("llama.feed_forward_length", 64)
      .U32("llama.context_length", 256)
      .U32("llama.attention.head_count", 4)
      .Floats("token_embd.weight", {32, 10}, std::vector<float>(320));
  return builder;
}

absl::StatusOr<std::unique_ptr<GgufFile>> Parse(const GgufBuilder& builder) {
  auto storage = std::make_shared<std::vector<std::byte>>(builder.Build());
  return GgufFile::Parse(*storage, storage, "test.gguf");
}

absl::StatusOr<ModelConfig> Read(const GgufBuilder& builder,
                                 std::string_view architecture = "llama") {
  const auto file = Parse(builder);
  if (!file.ok()) return file.status();
  return ReadGgufConfig(**file, **FindGgufFamily(architecture));
}

std::string ErrorOf(const GgufBuilder& builder) {
  return std::string(Read(builder).status().message());
}

TEST(GgufConfigTest, ReadsLlama) {
  const auto config = Read(Llama()
                               .U32("llama.attention.head_count_kv", 2)
                               .F32("llama.attention.layer_norm_rms_epsilon", 1e-6f)
                               .F32("llama.rope.freq_base", 500000.0f));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->name, "Tiny");
  EXPECT_EQ(config->vocab_size, 10);
  EXPECT_EQ(config->num_kv_heads, 2);
  EXPECT_EQ(config->head_dim, 8);
  EXPECT_EQ(config->rope.theta, 500000.0f);
  EXPECT_EQ(config->rope.dims, 8);
  EXPECT_FLOAT_EQ(config->norm_epsilon, 1e-6f);
  EXPECT_TRUE(config->tied_embeddings);
}

// Mistral's files are llamas; some state the window.
TEST(GgufConfigTest, ReadsAWindowOfAllLayers) {
  EXPECT_EQ(Read(Llama())->sliding_window, 0);
  EXPECT_EQ(Read(Llama().U32("llama.attention.sliding_window", 100))->sliding_window, 100);
  EXPECT_THAT(ErrorOf(Llama().U32("llama.attention.sliding_window", 1 << 30)),
              HasSubstr("sliding_window"));
  EXPECT_THAT(ErrorOf(Llama()
                          .U32("llama.attention.sliding_window", 100)
                          .U32("llama.attention.sliding_window_pattern", 6)),
              HasSubstr("llama.attention.sliding_window_pattern"));
}

// What all families call alike, under the name of one.
GgufBuilder Of(const std::string& family) {
  GgufBuilder builder;
  builder.String("general.architecture", family)
      .U32(family + ".block_count", 2)
      .U32(family + ".embedding_length", 48)
      .U32(family + ".feed_forward_length", 64)
      .U32(family + ".context_length", 256)
      .U32(family + ".attention.head_count", 6)
      .Floats("token_embd.weight", {48, 10}, std::vector<float>(480));
  return builder;
}

TEST(GgufConfigTest, ReadsQwen3) {
  const auto config = Read(Of("qwen3")
                               .U32("qwen3.attention.key_length", 32)
                               .U32("qwen3.attention.value_length", 32)
                               .U32("qwen3.attention.head_count_kv", 2)
                               .F32("qwen3.attention.layer_norm_rms_epsilon", 1e-6f)
                               .F32("qwen3.rope.freq_base", 1e6f),
                           "qwen3");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->qk_norm);
  EXPECT_EQ(config->head_dim, 32);
  EXPECT_EQ(config->rope.dims, 32);
  EXPECT_EQ(config->kv_dim(), 64);
}

TEST(GgufConfigTest, ReadsBloom) {
  const auto config = Read(Of("bloom").F32("bloom.attention.layer_norm_epsilon", 1e-4f), "bloom");
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->position, PositionKind::kAlibi);
  EXPECT_TRUE(config->embedding_norm);
  EXPECT_FALSE(config->qk_norm);
  EXPECT_EQ(config->num_kv_heads, 6);
  EXPECT_EQ(config->max_context, 256);
  EXPECT_FLOAT_EQ(config->norm_epsilon, 1e-4f);
}

TEST(GgufConfigTest, NumbersThatDisagreeAreErrorsThatNameTheKey) {
  EXPECT_THAT(ErrorOf(GgufBuilder()), HasSubstr("llama.block_count is missing"));
  EXPECT_THAT(ErrorOf(Llama().U32("llama.vocab_size", 11)),
              AllOf(HasSubstr("11"), HasSubstr("10 rows")));
  EXPECT_THAT(ErrorOf(Llama().U32("llama.attention.head_count_kv", 3)), HasSubstr("3"));
  EXPECT_THAT(ErrorOf(Llama().U32("llama.attention.head_count_kv", 4000000000u)),
              AllOf(HasSubstr("head_count_kv"), HasSubstr("4000000000")));
  EXPECT_THAT(
      ErrorOf(Llama().U32("llama.attention.key_length", 8).U32("llama.attention.value_length", 16)),
      AllOf(HasSubstr("8 dims"), HasSubstr("16")));
  EXPECT_THAT(ErrorOf(Llama().U32("llama.rope.dimension_count", 9)), HasSubstr("9"));
  EXPECT_THAT(ErrorOf(Llama().U32("tokenizer.ggml.eos_token_id", 10)),
              AllOf(HasSubstr("eos_token_id is 10"), HasSubstr("9")));
  EXPECT_THAT(ErrorOf(Llama().F32("llama.rope.freq_base", std::numeric_limits<float>::quiet_NaN())),
              HasSubstr("theta"));
  EXPECT_THAT(ErrorOf(Llama().String("llama.rope.freq_base", "x")), HasSubstr("freq_base"));
  EXPECT_THAT(ErrorOf(Llama().U32("split.count", 3)), HasSubstr("one of 3 parts"));
  EXPECT_THAT(ErrorOf(Llama().U32("llama.expert_count", 8)), HasSubstr("8 experts"));
}

TEST(GgufConfigTest, ReadsRopeScalings) {
  auto linear =
      Read(Llama().String("llama.rope.scaling.type", "linear").F32("llama.rope.scaling.factor", 4));
  ASSERT_TRUE(linear.ok()) << linear.status();
  EXPECT_EQ(linear->rope.scaling, Scaling::kLinear);
  EXPECT_EQ(linear->rope.factor, 4.0f);

  EXPECT_EQ(Read(Llama().F32("llama.rope.scale_linear", 2))->rope.scaling, Scaling::kLinear);
  EXPECT_EQ(Read(Llama().String("llama.rope.scaling.type", "none"))->rope.scaling, Scaling::kNone);

  auto yarn = Read(Llama()
                       .String("llama.rope.scaling.type", "yarn")
                       .F32("llama.rope.scaling.factor", 4)
                       .U32("llama.rope.scaling.original_context_length", 64));
  ASSERT_TRUE(yarn.ok()) << yarn.status();
  EXPECT_EQ(yarn->rope.scaling, Scaling::kYarn);
  EXPECT_EQ(yarn->rope.original_max_positions, 64);
  const float square = ComputeRopeFrequencies(yarn->rope, 256).score_factor;
  auto louder = Read(Llama()
                         .String("llama.rope.scaling.type", "yarn")
                         .F32("llama.rope.scaling.factor", 4)
                         .F32("llama.rope.scaling.attn_factor", 2)
                         .U32("llama.rope.scaling.original_context_length", 64));
  ASSERT_TRUE(louder.ok()) << louder.status();
  EXPECT_FLOAT_EQ(ComputeRopeFrequencies(louder->rope, 256).score_factor, 4 * square);

  auto longrope = Read(Llama()
                           .String("llama.rope.scaling.type", "longrope")
                           .U32("llama.rope.scaling.original_context_length", 64)
                           .Floats("rope_factors_short.weight", {4}, {1, 1, 1, 1})
                           .Floats("rope_factors_long.weight", {4}, {1, 2, 3, 4}));
  ASSERT_TRUE(longrope.ok()) << longrope.status();
  EXPECT_EQ(longrope->rope.factor, 4.0f);
  EXPECT_THAT(longrope->rope.long_factors, ElementsAre(1, 2, 3, 4));

  EXPECT_THAT(ErrorOf(Llama().String("llama.rope.scaling.type", "spiral")), HasSubstr("spiral"));
}

TEST(GgufConfigTest, RopeFreqsDivideTheFrequenciesAtEveryLength) {
  const auto config = Read(Llama().Floats("rope_freqs.weight", {4}, {1, 2, 4, 8}));
  ASSERT_TRUE(config.ok()) << config.status();
  RopeConfig plain = config->rope;
  plain.scaling = Scaling::kNone;
  for (const int length : {16, 256, 4096}) {
    const RopeFrequencies scaled = ComputeRopeFrequencies(config->rope, length);
    const RopeFrequencies unscaled = ComputeRopeFrequencies(plain, length);
    EXPECT_EQ(scaled.score_factor, 1.0f);
    for (int j = 0; j < 4; ++j) {
      EXPECT_DOUBLE_EQ(scaled.inv_freq[j], unscaled.inv_freq[j] / (1 << j));
    }
  }
  EXPECT_THAT(ErrorOf(Llama().Floats("rope_freqs.weight", {3}, {1, 2, 4})),
              AllOf(HasSubstr("3"), HasSubstr("4")));
  EXPECT_THAT(ErrorOf(Llama().Floats("rope_freqs.weight", {4}, {1, 2, 0, 8})), HasSubstr("factor"));
}

TEST(GgufConfigTest, EveryTokenThatEndsATurnEndsAGeneration) {
  const auto config =
      Read(Llama()
               .U32("tokenizer.ggml.eos_token_id", 3)
               .U32("tokenizer.ggml.eot_token_id", 5)
               .Strings("tokenizer.ggml.tokens", {"a", "<|im_end|>", "<|eot_id|>", "</s>", "x", "y",
                                                  "<|endoftext|>", "z", "w", "v"})
               // <|eot_id|> is an ordinary token here: text may contain it.
               .Numbers<int32_t>("tokenizer.ggml.token_type", 5, {1, 3, 1, 3, 1, 3, 3, 1, 1, 1}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->eos_token_ids, ElementsAre(3, 5, 1, 6));
}

TEST(GgufTokenizerTest, ReadsTheVocabulary) {
  const auto file = Parse(GgufBuilder()
                              .String("tokenizer.ggml.model", "llama")
                              .String("tokenizer.ggml.pre", "default")
                              .Strings("tokenizer.ggml.tokens", {"a", "b"})
                              .Numbers<float>("tokenizer.ggml.scores", 6, {0.0f, -1.0f})
                              .Numbers<int32_t>("tokenizer.ggml.token_type", 5, {1, 6})
                              .Strings("tokenizer.ggml.merges", {"a b"})
                              .U32("tokenizer.ggml.bos_token_id", 1)
                              .U32("tokenizer.ggml.unknown_token_id", 0xffffffffu)
                              .Bool("tokenizer.ggml.add_bos_token", false)
                              .String("tokenizer.chat_template", "{{ x }}"));
  ASSERT_TRUE(file.ok()) << file.status();
  const auto source = ReadGgufTokenizer(**file);
  ASSERT_TRUE(source.ok()) << source.status();
  EXPECT_EQ(source->chat_template, "{{ x }}");
  ASSERT_TRUE(source->gguf.has_value());
  EXPECT_EQ(source->gguf->model, "llama");
  EXPECT_THAT(source->gguf->tokens, ElementsAre("a", "b"));
  EXPECT_THAT(source->gguf->scores, ElementsAre(0.0f, -1.0f));
  EXPECT_THAT(source->gguf->token_types, ElementsAre(1, 6));
  EXPECT_THAT(source->gguf->merges, ElementsAre("a b"));
  EXPECT_EQ(source->gguf->bos_token_id, 1);
  EXPECT_EQ(source->gguf->eos_token_id, -1);
  EXPECT_EQ(source->gguf->unknown_token_id, -1);
  EXPECT_EQ(source->gguf->add_bos, false);
  EXPECT_EQ(source->gguf->add_eos, std::nullopt);
}

TEST(GgufTokenizerTest, ArraysThatDisagreeAreErrors) {
  const auto file = Parse(GgufBuilder()
                              .String("tokenizer.ggml.model", "llama")
                              .Strings("tokenizer.ggml.tokens", {"a", "b"})
                              .Numbers<float>("tokenizer.ggml.scores", 6, {0.0f}));
  EXPECT_THAT(std::string(ReadGgufTokenizer(**file).status().message()),
              AllOf(HasSubstr("scores"), HasSubstr("1 entries for 2")));
}

}  // namespace
}  // namespace latentd
