#include "engine/model/model_config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace latentd {
namespace {

using testing::HasSubstr;
using Scaling = RopeConfig::Scaling;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

ModelConfig Valid() {
  return {.family = "llama",
          .vocab_size = 100,
          .num_layers = 2,
          .hidden_dim = 64,
          .mlp_dim = 128,
          .num_heads = 4,
          .num_kv_heads = 2,
          .head_dim = 16,
          .max_context = 512,
          .rope = {.dims = 16},
          .eos_token_ids = {2}};
}

TEST(ModelConfigTest, BytesOfTheUncompressedCache) {
  // SmolLM2-135M: 30 layers, 3 KV heads of 64 dims.
  ModelConfig config = Valid();
  config.num_layers = 30;
  config.num_kv_heads = 3;
  config.head_dim = 64;
  EXPECT_EQ(config.full_bytes_per_token(), 23040);
}

TEST(ModelConfigTest, AWrongNumberIsAnErrorThatNamesItsField) {
  ASSERT_TRUE(Validate(Valid()).ok()) << Validate(Valid());
  struct Case {
    const char* named;
    void (*spoil)(ModelConfig&);
  };
  for (const Case& wrong : {
           Case{"vocab_size is 0", [](ModelConfig& c) { c.vocab_size = 0; }},
           Case{"vocab_size is 1073741824", [](ModelConfig& c) { c.vocab_size = 1 << 30; }},
           Case{"num_layers is -1", [](ModelConfig& c) { c.num_layers = -1; }},
           Case{"hidden_dim is 0", [](ModelConfig& c) { c.hidden_dim = 0; }},
           Case{"mlp_dim is 0", [](ModelConfig& c) { c.mlp_dim = 0; }},
           Case{"num_heads is 0", [](ModelConfig& c) { c.num_heads = 0; }},
           Case{"num_kv_heads is 8", [](ModelConfig& c) { c.num_kv_heads = 8; }},
           Case{"num_kv_heads 3", [](ModelConfig& c) { c.num_kv_heads = 3; }},
           Case{"head_dim is 0", [](ModelConfig& c) { c.head_dim = 0; }},
           Case{"max_context is 0", [](ModelConfig& c) { c.max_context = 0; }},
           Case{"norm_epsilon is nan", [](ModelConfig& c) { c.norm_epsilon = kNan; }},
           Case{"temperature is inf", [](ModelConfig& c) { c.default_temperature = kInfinity; }},
           Case{"top_p is 0", [](ModelConfig& c) { c.default_top_p = 0; }},
           Case{"top_k is -1", [](ModelConfig& c) { c.default_top_k = -1; }},
           Case{"eos_token_id is 100",
                [](ModelConfig& c) {
                  c.eos_token_ids = {2, 100};
                }},
           Case{"bos_token_id is -2", [](ModelConfig& c) { c.bos_token_id = -2; }},
           Case{"rotated dims is 15", [](ModelConfig& c) { c.rope.dims = 15; }},
           Case{"rotated dims is 18", [](ModelConfig& c) { c.rope.dims = 18; }},
           Case{"theta is nan", [](ModelConfig& c) { c.rope.theta = kNan; }},
           Case{"theta is 1", [](ModelConfig& c) { c.rope.theta = 1; }},
           Case{"alibi_bias_max is nan", [](ModelConfig& c) { c.alibi_bias_max = kNan; }},
           Case{"sliding_window is -1", [](ModelConfig& c) { c.sliding_window = -1; }},
           Case{"with RoPE alone",
                [](ModelConfig& c) {
                  c.qk_norm = true;
                  c.position = PositionKind::kAlibi;
                }},
       }) {
    ModelConfig config = Valid();
    wrong.spoil(config);
    EXPECT_THAT(std::string(Validate(config).message()), HasSubstr(wrong.named));
  }
}

TEST(ModelConfigTest, AWrongRopeScalingIsAnError) {
  struct Case {
    const char* named;
    RopeConfig rope;
  };
  for (const Case& wrong : {
           Case{"factor is 0.5", {.dims = 16, .scaling = Scaling::kLinear, .factor = 0.5f}},
           Case{"factor is nan", {.dims = 16, .scaling = Scaling::kLinear, .factor = kNan}},
           Case{"original_max_position", {.dims = 16, .scaling = Scaling::kYarn, .factor = 2}},
           Case{"low_freq_factor 4",
                {.dims = 16,
                .scaling = Scaling::kLlama3,
                .factor = 2,
                .original_max_positions = 64,
                .low_freq_factor = 4,
                .high_freq_factor = 4}},
           Case{"short_factor has 0",
                {.dims = 16, .scaling = Scaling::kLongRope, .original_max_positions = 64}},
           Case{"at least 4",
                {.dims = 2, .scaling = Scaling::kDynamicNtk, .original_max_positions = 64}},
           Case{"8 rotated dims of 16",
                {.dims = 8, .scaling = Scaling::kYarn, .factor = 4, .original_max_positions = 64}},
       }) {
    ModelConfig config = Valid();
    config.rope = wrong.rope;
    EXPECT_THAT(std::string(Validate(config).message()), HasSubstr(wrong.named));
  }
}

}  // namespace
}  // namespace latentd
