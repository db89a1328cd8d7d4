// The decoder against Hugging Face transformers, on models and numbers made by make_goldens.py.

#include <algorithm>
#include <fstream>
#include <numeric>

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/decoder_harness.h"

namespace latentd {
namespace {

struct GoldenCase {
  std::string model;
  std::string backend;
};

class GoldenTest : public ::testing::TestWithParam<GoldenCase> {};

TEST_P(GoldenTest, LogitsAndGreedyTokensAreThoseOfTransformers) {
  const auto checkpoint = Checkpoint::Open(GoldenModel(GetParam().model));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  std::unique_ptr<Ops> ops = GetParam().backend == "cpu" ? *CreateCpuOps(2) : CreateReferenceOps();
  auto harness = DecoderHarness::Create(**checkpoint, nullptr, std::move(ops), Codec::kF32, 4);
  ASSERT_TRUE(harness.ok()) << harness.status();
  const std::vector<int32_t> blocks = {2, 0, 3, 1};

  std::ifstream file(GoldenModel(GetParam().model) + "/golden.json");
  const nlohmann::json golden = nlohmann::json::parse(file);
  for (const auto& example : golden["cases"]) {
    std::vector<int32_t> tokens = example["prompt_ids"];
    const std::vector<int32_t> greedy = example["greedy_ids"];
    const size_t prompt = tokens.size();
    tokens.insert(tokens.end(), greedy.begin(), greedy.end());
    const auto logits = (*harness)->RunSequence(tokens, blocks, {static_cast<int>(prompt)});
    const std::vector<float> last = example["logits"];
    for (size_t i = 0; i < last.size(); ++i) EXPECT_NEAR(logits[prompt - 1][i], last[i], 1e-3) << i;
    if (example.contains("all_logits")) {
      for (size_t p = 0; p < prompt; ++p) {
        const std::vector<float> expected = example["all_logits"][p];
        for (size_t i = 0; i < expected.size(); ++i)
          EXPECT_NEAR(logits[p][i], expected[i], 1e-3) << p << " " << i;
      }
    }
    for (size_t i = 0; i < greedy.size(); ++i) {
      const std::vector<float>& row = logits[prompt - 1 + i];
      EXPECT_EQ(std::max_element(row.begin(), row.end()) - row.begin(), greedy[i]) << "token " << i;
    }
  }
}

std::vector<GoldenCase> Cases() {
  std::vector<GoldenCase> cases;
  for (const char* model :
       {"llama", "llama-rope3", "llama-f16", "llama-bf16-sharded", "qwen2", "gpt2"}) {
    for (const char* backend : {"reference", "cpu"}) cases.push_back({model, backend});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenTest, ::testing::ValuesIn(Cases()), [](const auto& info) {
  std::string name = info.param.model + "_" + info.param.backend;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace latentd
