#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "engine/checkpoint/hf_config.h"
#include "engine/model/model_config.h"

namespace latentd {
namespace {

using Json = nlohmann::json;
using Scaling = RopeConfig::Scaling;

// Golden inverse frequencies of Hugging Face transformers, through the config reader, so that both
// are held to them.
TEST(RopeTest, EveryPublishedScalingGivesTheFrequenciesOfTransformers) {
  std::ifstream file(std::string(LATENTD_GOLDEN_DIR) + "/rope.json");
  const Json goldens = Json::parse(file);
  ASSERT_GE(goldens["cases"].size(), 8u);
  for (const Json& golden : goldens["cases"]) {
    const std::string name = golden["name"];
    Json config = {{"architectures", {"LlamaForCausalLM"}},
                   {"vocab_size", 10},
                   {"hidden_size", 16},
                   {"intermediate_size", 16},
                   {"num_hidden_layers", 1},
                   {"num_attention_heads", 1},
                   {"head_dim", golden["head_dim"]},
                   {"max_position_embeddings", golden["max_position_embeddings"]},
                   {"rope_theta", golden["rope_theta"]},
                   {"rope_scaling", golden["rope_scaling"]}};
    const auto read = ReadHfConfig(config, nullptr, **FindHfFamily("LlamaForCausalLM"));
    ASSERT_TRUE(read.ok()) << name << ": " << read.status();
    const RopeFrequencies frequencies = ComputeRopeFrequencies(read->rope, golden["length"]);
    const std::vector<double> wanted = golden["inv_freq"];
    ASSERT_EQ(frequencies.inv_freq.size(), wanted.size()) << name;
    for (size_t j = 0; j < wanted.size(); ++j) {
      EXPECT_NEAR(frequencies.inv_freq[j] / wanted[j], 1.0, 2e-6) << name << " pair " << j;
    }
    const double attention_factor = golden["attention_factor"];
    EXPECT_NEAR(frequencies.score_factor, attention_factor * attention_factor, 1e-5) << name;
  }
}

// Values of transformers 5.24 (ROPE_INIT_FUNCTIONS["yarn"]) for a ramp that lies inside the pairs
// at both ends.
TEST(RopeTest, YarnsRampBeginsAndEndsWhereTransformersHasIt) {
  const std::vector<double> whole = {1,       0.3162278,   0.1,     0.02569351,
                                     0.00625, 0.001383497, 0.00025, 7.905695e-05};
  const std::vector<double> exact = {1,           0.3162278,   0.1,     0.02861361,
                                     0.006556971, 0.001285632, 0.00025, 7.905695e-05};
  for (const bool truncate : {true, false}) {
    const RopeFrequencies frequencies = ComputeRopeFrequencies({.dims = 16,
                                                                .scaling = Scaling::kYarn,
                                                                .factor = 4,
                                                                .original_max_positions = 4096,
                                                                .truncate = truncate},
                                                               16384);
    for (int j = 0; j < 8; ++j) {
      EXPECT_NEAR(frequencies.inv_freq[j] / (truncate ? whole : exact)[j], 1.0, 2e-6) << j;
    }
  }
}

TEST(RopeTest, ScalingOfFactorOneChangesNothing) {
  const RopeFrequencies plain = ComputeRopeFrequencies({.dims = 16}, 256);
  for (const Scaling scaling :
       {Scaling::kLinear, Scaling::kDynamicNtk, Scaling::kYarn, Scaling::kLlama3}) {
    const RopeFrequencies scaled = ComputeRopeFrequencies(
        {.dims = 16, .scaling = scaling, .factor = 1, .original_max_positions = 256}, 256);
    EXPECT_EQ(scaled.score_factor, 1.0f);
    for (size_t j = 0; j < plain.inv_freq.size(); ++j) {
      EXPECT_DOUBLE_EQ(scaled.inv_freq[j], plain.inv_freq[j]);
    }
  }
}

TEST(RopeTest, TheTableHoldsTheRotationOfEveryPosition) {
  const RopeFrequencies frequencies = ComputeRopeFrequencies({.dims = 8}, 100);
  const RopeTable table = BuildRopeTable(frequencies, 100);
  EXPECT_EQ(table.pairs, 4);
  EXPECT_EQ(table.max_positions, 100);
  ASSERT_EQ(table.cos.size(), 400u);
  for (const int position : {0, 1, 63, 99}) {
    for (int j = 0; j < 4; ++j) {
      const double angle = position * std::pow(10000.0, -j / 4.0);
      EXPECT_NEAR(table.cos[position * 4 + j], std::cos(angle), 1e-6);
      EXPECT_NEAR(table.sin[position * 4 + j], std::sin(angle), 1e-6);
    }
  }
}

}  // namespace
}  // namespace latentd
