#include "engine/checkpoint/hf_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace latentd {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using Json = nlohmann::json;
using Scaling = RopeConfig::Scaling;

Json Llama() {
  return Json::parse(R"({"architectures":["LlamaForCausalLM"],"vocab_size":100,"hidden_size":64,
      "intermediate_size":128,"num_hidden_layers":2,"num_attention_heads":4,
      "num_key_value_heads":2,"max_position_embeddings":512,"rms_norm_eps":1e-6,
      "rope_theta":500000.0,"hidden_act":"silu","bos_token_id":1,"eos_token_id":[2,3]})");
}

absl::StatusOr<ModelConfig> Read(const Json& json, const Json& generation = nullptr) {
  const absl::StatusOr<const Family*> family = FamilyOfHfConfig(json);
  if (!family.ok()) return family.status();
  return ReadHfConfig(json, generation, **family);
}

std::string ErrorOf(const Json& json) { return std::string(Read(json).status().message()); }

Json With(Json json, const char* key, Json value) {
  json[key] = std::move(value);
  return json;
}

TEST(HfConfigTest, ReadsLlama) {
  const auto config = Read(Llama());
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->family, "llama");
  EXPECT_EQ(config->vocab_size, 100);
  EXPECT_EQ(config->num_layers, 2);
  EXPECT_EQ(config->hidden_dim, 64);
  EXPECT_EQ(config->mlp_dim, 128);
  EXPECT_EQ(config->num_kv_heads, 2);
  EXPECT_EQ(config->head_dim, 16);
  EXPECT_EQ(config->max_context, 512);
  EXPECT_FLOAT_EQ(config->norm_epsilon, 1e-6f);
  EXPECT_EQ(config->rope.theta, 500000.0f);
  EXPECT_EQ(config->rope.dims, 16);
  EXPECT_EQ(config->rope.scaling, Scaling::kNone);
  EXPECT_FALSE(config->tied_embeddings);
  EXPECT_THAT(config->eos_token_ids, ElementsAre(2, 3));
}

TEST(HfConfigTest, ReadsTheShapesOfTools) {
  const auto bytes_per_token = [](const char* name) {
    std::ifstream file(absl::StrCat(LATENTD_SHAPES, "/", name));
    const auto config = Read(Json::parse(file));
    EXPECT_TRUE(config.ok()) << config.status();
    return config.ok() ? config->full_bytes_per_token() : 0;
  };
  EXPECT_EQ(bytes_per_token("llama-2-7b.json"), 524288);
  EXPECT_EQ(bytes_per_token("llama-3.1-8b.json"), 131072);
}

TEST(HfConfigTest, TakesDefaultsWhereThePublishedConfigsLeaveThemOut) {
  Json json = Llama();
  json.erase("num_key_value_heads");
  json.erase("rope_theta");
  json.erase("bos_token_id");
  json["eos_token_id"] = nullptr;
  const auto config = Read(json);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->num_kv_heads, 4);
  EXPECT_EQ(config->rope.theta, 10000.0f);
  EXPECT_EQ(config->bos_token_id, -1);
  EXPECT_THAT(config->eos_token_ids, IsEmpty());
}

TEST(HfConfigTest, ReadsGpt2) {
  const auto config = Read(Json::parse(R"({"architectures":["GPT2LMHeadModel"],"vocab_size":100,
      "n_embd":48,"n_layer":3,"n_head":4,"n_positions":64,"n_inner":null,
      "layer_norm_epsilon":1e-5,"activation_function":"gelu_new"})"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->mlp_dim, 192);
  EXPECT_EQ(config->head_dim, 12);
  EXPECT_EQ(config->position, PositionKind::kLearned);
  EXPECT_EQ(config->norm, NormKind::kLayer);
  EXPECT_EQ(config->activation, ActivationKind::kGeluTanh);
  EXPECT_TRUE(config->tied_embeddings);
}

TEST(HfConfigTest, ReadsMistralsWindow) {
  const Json mistral = With(Llama(), "architectures", {"MistralForCausalLM"});
  EXPECT_EQ(Read(With(mistral, "sliding_window", 100))->sliding_window, 100);
  EXPECT_EQ(Read(With(mistral, "sliding_window", nullptr))->sliding_window, 0);
  EXPECT_EQ(Read(mistral)->sliding_window, 4096);  // what transformers takes
  EXPECT_EQ(Read(mistral)->family, "mistral");
  // A family without windows does not look at the key.
  EXPECT_EQ(Read(With(Llama(), "sliding_window", 100))->sliding_window, 0);
}

TEST(HfConfigTest, AWindowIsAllLayersOrNones) {
  const Json mistral = With(Llama(), "architectures", {"MistralForCausalLM"});
  const Json windowed = With(mistral, "sliding_window", 100);
  const Json full = {"full_attention", "full_attention"};
  const Json sliding = {"sliding_attention", "sliding_attention"};
  EXPECT_TRUE(Read(With(windowed, "layer_types", sliding)).ok());
  EXPECT_TRUE(Read(With(Llama(), "layer_types", full)).ok());
  for (const Json& wrong : {With(windowed, "layer_types", full),
                            With(windowed, "layer_types", {"sliding_attention", "full_attention"}),
                            With(Llama(), "layer_types", sliding)}) {
    EXPECT_EQ(Read(wrong).status().code(), absl::StatusCode::kUnimplemented);
    EXPECT_THAT(ErrorOf(wrong), HasSubstr("layer_types"));
  }
  EXPECT_THAT(ErrorOf(With(windowed, "layer_types", 3)), HasSubstr("layer_types"));
  for (const Json& wrong : {Json(0), Json(-5), Json("x"), Json(int64_t{1} << 40)}) {
    EXPECT_THAT(ErrorOf(With(mistral, "sliding_window", wrong)), HasSubstr("sliding_window"))
        << wrong;
  }
}

TEST(HfConfigTest, ReadsQwen3) {
  Json json = With(Llama(), "architectures", {"Qwen3ForCausalLM"});
  json["use_sliding_window"] = false;
  json["sliding_window"] = 4096;         // not used
  EXPECT_EQ(Read(json)->head_dim, 128);  // what transformers takes
  json["head_dim"] = 32;
  const auto config = Read(json);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_TRUE(config->qk_norm);
  EXPECT_EQ(config->head_dim, 32);
  EXPECT_EQ(config->q_dim(), 128);
  EXPECT_EQ(config->rope.dims, 32);
  EXPECT_EQ(config->sliding_window, 0);
  EXPECT_THAT(ErrorOf(With(json, "use_sliding_window", true)), HasSubstr("use_sliding_window"));
}

// By the keys that transformers writes now, and by those of the published files.
TEST(HfConfigTest, ReadsBothGenerationsOfBloomKeys) {
  for (const char* keys :
       {R"("hidden_size":48,"n_head":6)", R"("n_embed":48,"num_attention_heads":6)"}) {
    const auto config = Read(Json::parse(
        absl::StrCat(R"({"architectures":["BloomForCausalLM"],"vocab_size":100,"n_layer":3,)", keys,
                     R"(,"n_inner":null,"layer_norm_epsilon":1e-5})")));
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->hidden_dim, 48);
    EXPECT_EQ(config->mlp_dim, 192);
    EXPECT_EQ(config->num_heads, 6);
    EXPECT_EQ(config->num_kv_heads, 6);
    EXPECT_EQ(config->head_dim, 8);
    EXPECT_EQ(config->position, PositionKind::kAlibi);
    EXPECT_EQ(config->norm, NormKind::kLayer);
    EXPECT_EQ(config->activation, ActivationKind::kGeluTanh);
    EXPECT_TRUE(config->embedding_norm);
    EXPECT_TRUE(config->tied_embeddings);
  }
}

Json Bloom() {
  return Json::parse(R"({"architectures":["BloomForCausalLM"],"vocab_size":100,"n_layer":3,
      "hidden_size":48,"n_head":6,"layer_norm_epsilon":1e-5})");
}

TEST(HfConfigTest, BloomsContextIsTheStatedOneOr2048) {
  EXPECT_EQ(Read(Bloom())->max_context, 2048);
  EXPECT_EQ(Read(With(Bloom(), "seq_length", nullptr))->max_context, 2048);
  EXPECT_EQ(Read(With(Bloom(), "seq_length", 4096))->max_context, 4096);
  EXPECT_THAT(ErrorOf(With(Bloom(), "seq_length", 0)), HasSubstr("max_context"));
}

TEST(HfConfigTest, WrongBloomConfigsAreErrorsThatNameTheField) {
  EXPECT_THAT(ErrorOf(With(Bloom(), "apply_residual_connection_post_layernorm", true)),
              HasSubstr("apply_residual_connection_post_layernorm"));
  EXPECT_THAT(ErrorOf(With(Bloom(), "n_head", 5)), AllOf(HasSubstr("5"), HasSubstr("48")));
  EXPECT_THAT(ErrorOf(With(Bloom(), "n_head", nullptr)), HasSubstr("n_head"));
  EXPECT_THAT(ErrorOf(With(Bloom(), "n_head", "x")), HasSubstr("n_head"));
}

TEST(HfConfigTest, TheGenerationConfigGoesBeforeTheConfig) {
  const auto config =
      Read(Llama(), Json::parse(R"({"eos_token_id":7,"temperature":0.6,"top_p":0.9,"top_k":40})"));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_THAT(config->eos_token_ids, ElementsAre(7));
  EXPECT_FLOAT_EQ(config->default_temperature, 0.6f);
  EXPECT_FLOAT_EQ(config->default_top_p, 0.9f);
  EXPECT_EQ(config->default_top_k, 40);
  for (const char* wrong : {R"({"temperature":-1})", R"({"top_p":2})", R"({"top_k":-5})",
                            R"({"eos_token_id":100})", R"({"eos_token_id":"x"})"}) {
    EXPECT_FALSE(Read(Llama(), Json::parse(wrong)).ok()) << wrong;
  }
}

TEST(HfConfigTest, AnArchitectureOutsideTheTableIsNamedWithTheSupportedOnes) {
  const absl::Status status = Read(With(Llama(), "architectures", {"Gemma3ForCausalLM"})).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("Gemma3ForCausalLM"), HasSubstr("LlamaForCausalLM"),
                    HasSubstr("Qwen2ForCausalLM"), HasSubstr("GPT2LMHeadModel")));
  for (const Json& wrong : {Json(), Json::array(), Json("x"), Json::array({1})}) {
    EXPECT_THAT(ErrorOf(With(Llama(), "architectures", wrong)), HasSubstr("architectures"));
  }
}

TEST(HfConfigTest, SettingsThatWouldChangeTheArithmeticAreRefused) {
  EXPECT_THAT(ErrorOf(With(Llama(), "hidden_act", "relu")), HasSubstr("relu"));
  EXPECT_THAT(ErrorOf(With(Llama(), "quantization_config", {{"quant_method", "gptq"}})),
              HasSubstr("gptq"));
  Json qwen2 = With(Llama(), "architectures", {"Qwen2ForCausalLM"});
  EXPECT_TRUE(Read(With(qwen2, "use_sliding_window", false)).ok());
  EXPECT_THAT(ErrorOf(With(qwen2, "use_sliding_window", true)), HasSubstr("use_sliding_window"));
}

TEST(HfConfigTest, NumbersOutOfRangeAreErrorsThatNameTheField) {
  struct Case {
    const char* key;
    Json value;
    const char* named;
  };
  for (const Case& wrong : {
           Case{"vocab_size", int64_t{1} << 40, "vocab_size"},
           Case{"vocab_size", 0, "vocab_size"},
           Case{"num_attention_heads", 0, "num_attention_heads"},
           Case{"num_attention_heads", 5, "num_attention_heads"},
           Case{"num_attention_heads", -4, "num_attention_heads"},
           Case{"num_key_value_heads", 3, "num_kv_heads 3"},
           Case{"num_key_value_heads", 0, "num_kv_heads"},
           Case{"hidden_size", 1 << 30, "hidden_size"},
           Case{"head_dim", 15, "15"},
           Case{"num_hidden_layers", 1 << 20, "num_layers"},
           Case{"intermediate_size", nullptr, "intermediate_size"},
           Case{"intermediate_size", -1, "mlp_dim"},
           Case{"max_position_embeddings", 0, "max_context"},
           Case{"rms_norm_eps", -1.0, "norm_epsilon"},
           Case{"rope_theta", 0.0, "theta"},
           Case{"rope_theta", "x", "rope_theta"},
           Case{"partial_rotary_factor", 1.5, "partial_rotary_factor"},
           Case{"eos_token_id", 100, "eos_token_id"},
           Case{"bos_token_id", 100, "bos_token_id"},
       }) {
    EXPECT_THAT(ErrorOf(With(Llama(), wrong.key, wrong.value)), HasSubstr(wrong.named))
        << wrong.key;
  }
}

TEST(HfConfigTest, ReadsBothGenerationsOfRopeKeys) {
  for (const char* type_key : {"type", "rope_type"}) {
    const auto config =
        Read(With(Llama(), "rope_scaling", {{type_key, "linear"}, {"factor", 4.0}}));
    ASSERT_TRUE(config.ok()) << config.status();
    EXPECT_EQ(config->rope.scaling, Scaling::kLinear);
    EXPECT_EQ(config->rope.factor, 4.0f);
    EXPECT_EQ(config->max_context, 2048);
  }
  const auto config = Read(With(Llama(), "rope_parameters",
                                {{"rope_type", "llama3"},
                                 {"rope_theta", 12345.0},
                                 {"factor", 8.0},
                                 {"low_freq_factor", 1.0},
                                 {"high_freq_factor", 4.0},
                                 {"original_max_position_embeddings", 64}}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope.theta, 12345.0f);
  EXPECT_EQ(config->rope.scaling, Scaling::kLlama3);
  EXPECT_EQ(config->rope.original_max_positions, 64);
  EXPECT_EQ(config->max_context, 512);
  EXPECT_EQ(Read(With(Llama(), "rope_parameters", {{"rope_theta", 7.0}}))->rope.scaling,
            Scaling::kNone);
}

TEST(HfConfigTest, LongRopeTakesItsFactorFromTheContexts) {
  Json json = With(Llama(), "original_max_position_embeddings", 128);
  json["rope_scaling"] = {{"type", "su"},
                          {"short_factor", std::vector<float>(8, 1.0f)},
                          {"long_factor", std::vector<float>(8, 2.0f)}};
  const auto config = Read(json);
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->rope.scaling, Scaling::kLongRope);
  EXPECT_EQ(config->rope.factor, 4.0f);
  json["rope_scaling"]["long_factor"].push_back(1.0);
  EXPECT_THAT(ErrorOf(json), AllOf(HasSubstr("long_factor"), HasSubstr("9"), HasSubstr("8")));
}

TEST(HfConfigTest, YarnExtendsTheContext) {
  const auto config =
      Read(With(Llama(), "rope_scaling",
                {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}}));
  ASSERT_TRUE(config.ok()) << config.status();
  EXPECT_EQ(config->max_context, 2048);
}

TEST(HfConfigTest, AWrongRopeScalingIsNamed) {
  EXPECT_THAT(ErrorOf(With(Llama(), "rope_scaling", {{"type", "mrope"}, {"factor", 2.0}})),
              AllOf(HasSubstr("mrope"), HasSubstr("yarn")));
  EXPECT_THAT(ErrorOf(With(Llama(), "rope_scaling", {{"factor", 2.0}})), HasSubstr("supported"));
  EXPECT_THAT(ErrorOf(With(Llama(), "rope_scaling", {{"type", "linear"}})), HasSubstr("factor"));
  EXPECT_THAT(ErrorOf(With(Llama(), "rope_scaling", {{"type", "linear"}, {"factor", 0.0}})),
              HasSubstr("factor"));
  EXPECT_THAT(ErrorOf(With(Llama(), "rope_scaling", 3)), HasSubstr("rope_scaling"));
  EXPECT_THAT(
      ErrorOf(With(Llama(), "rope_scaling",
                   {{"type", "yarn"}, {"factor", 2.0}, {"original_max_position_embeddings", 0}})),
      HasSubstr("original_max_position_embeddings"));
}

}  // namespace
}  // namespace latentd
