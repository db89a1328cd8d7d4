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
    EXPECT_EQ(*FindGgufFamily(family.name), &family);
    EXPECT_EQ(*FindHfFamily(family.hf_architecture), &family);
  }
}

TEST(FamiliesTest, AnUnknownArchitectureIsNamedWithTheSupportedOnes) {
  for (const absl::Status& status : {FindHfFamily("Qwen3ForCausalLM").status(),
                                     FindHfFamily("").status(), FindHfFamily("llama").status()}) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(std::string(status.message()),
                AllOf(HasSubstr("LlamaForCausalLM"), HasSubstr("GPT2LMHeadModel")));
  }
  EXPECT_THAT(std::string(FindGgufFamily("qwen3").status().message()),
              AllOf(HasSubstr("\"qwen3\""), HasSubstr("llama, qwen2, gpt2")));
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
  EXPECT_EQ(ExtentOf(Extent::kContext, config), 19);
}

}  // namespace
}  // namespace latentd
