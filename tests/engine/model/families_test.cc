#include "engine/model/families.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace latentd {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(FamiliesTest, FindsEveryFamilyByBothNames) {
  for (const Family& family : Families()) {
    EXPECT_EQ(FindFamily(family.name), &family);
    EXPECT_EQ(*FindHfFamily(family.hf_architecture), &family);
    const Family& of_gguf = **FindGgufFamily(family.gguf_architecture);
    EXPECT_EQ(of_gguf.name, family.name == "mistral" ? "llama" : family.name);
  }
  EXPECT_EQ(FindFamily("BloomForCausalLM"), nullptr);
}

// A GGUF file of Mistral's says that it is a llama.
TEST(FamiliesTest, MistralIsLlamaToAGgufFile) {
  const Family &llama = *FindFamily("llama"), &mistral = *FindFamily("mistral");
  EXPECT_EQ(llama.weights.data(), mistral.weights.data());
  EXPECT_TRUE(llama.gguf_sliding_window);
  EXPECT_EQ(llama.hf_keys.sliding_window, nullptr);
  EXPECT_STREQ(mistral.hf_keys.sliding_window, "sliding_window");
}

TEST(FamiliesTest, AnUnknownArchitectureIsNamedWithTheSupportedOnes) {
  for (const absl::Status& status : {FindHfFamily("Gemma3ForCausalLM").status(),
                                     FindHfFamily("").status(), FindHfFamily("llama").status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("LlamaForCausalLM"), HasSubstr("GPT2LMHeadModel")));
  }
  EXPECT_THAT(std::string(FindGgufFamily("gemma3").status().message()),
              AllOf(HasSubstr("\"gemma3\""), HasSubstr("llama, qwen2, qwen3, gpt2, bloom")));
}

// What the decoder asks every model for, under the names of checkpoint.h.
TEST(FamiliesTest, EveryFamilyHasWhatTheDecoderNeeds) {
  for (const Family& family : Families()) {
    std::set<std::string_view> names;
    for (const WeightRule& rule : family.weights) {
      EXPECT_TRUE(names.insert(rule.name).second) << family.name << " " << rule.name;
      // A layer's weight has a layer in every name; others have none.
      EXPECT_EQ(rule.per_layer(), rule.hf.find(".N.") != rule.hf.npos) << rule.hf;
      EXPECT_EQ(rule.per_layer(), rule.gguf.find(".N.") != rule.gguf.npos) << rule.gguf;
    }
    std::vector<std::string_view> needed = {"token_embedding",
                                            "final_norm.weight",
                                            "lm_head",
                                            "layers.N.attention_norm.weight",
                                            "layers.N.q.weight",
                                            "layers.N.k.weight",
                                            "layers.N.v.weight",
                                            "layers.N.o.weight",
                                            "layers.N.mlp_norm.weight",
                                            "layers.N.up.weight",
                                            "layers.N.down.weight"};
    if (family.position == PositionKind::kLearned) needed.push_back("position_embedding");
    if (family.norm == NormKind::kLayer) needed.push_back("layers.N.mlp_norm.bias");
    if (family.activation == ActivationKind::kSiluGated) needed.push_back("layers.N.gate.weight");
    if (family.qk_norm)
      needed.insert(needed.end(), {"layers.N.q_norm.weight", "layers.N.k_norm.weight"});
    if (family.embedding_norm) needed.push_back("embedding_norm.weight");
    for (const std::string_view name : needed) {
      EXPECT_TRUE(names.contains(name)) << family.name << " " << name;
    }
  }
}

TEST(FamiliesTest, ExtentsComeFromTheConfig) {
  const ModelConfig config = {.vocab_size = 11,
                              .hidden_dim = 13,
                              .mlp_dim = 17,
                              .num_heads = 4,
                              .num_kv_heads = 2,
                              .head_dim = 3,
                              .max_context = 19};
  EXPECT_EQ(ExtentOf(Extent::kOne, config), 1);
  EXPECT_EQ(ExtentOf(Extent::kVocab, config), 11);
  EXPECT_EQ(ExtentOf(Extent::kHidden, config), 13);
  EXPECT_EQ(ExtentOf(Extent::kMlp, config), 17);
  EXPECT_EQ(ExtentOf(Extent::kQuery, config), 12);
  EXPECT_EQ(ExtentOf(Extent::kKeyValue, config), 6);
  EXPECT_EQ(ExtentOf(Extent::kHead, config), 3);
  EXPECT_EQ(ExtentOf(Extent::kContext, config), 19);
}

}  // namespace
}  // namespace latentd
