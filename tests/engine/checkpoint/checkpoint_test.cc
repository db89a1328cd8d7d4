#include "engine/checkpoint/checkpoint.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/engine/checkpoint/temporary_folder.h"
#include "tests/engine/checkpoint/tensor_values.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

using testing::AllOf;
using testing::Each;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::Not;

const std::string kGolden = LATENTD_GOLDEN_DIR;

std::vector<std::string> LayerTensors(const Checkpoint& checkpoint) {
  std::vector<std::string> names = {"token_embedding", "final_norm.weight"};
  for (int layer = 0; layer < checkpoint.config().num_layers; ++layer) {
    for (const char* part :
         {"attention_norm", "q", "k", "v", "o", "mlp_norm", "gate", "up", "down"}) {
      names.push_back("layers." + std::to_string(layer) + "." + part + ".weight");
    }
  }
  return names;
}

std::string ReadText(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

TEST(CheckpointTest, OpensEveryFamily) {
  for (const char* family : {"llama", "qwen2", "gpt2"}) {
    const auto checkpoint = Checkpoint::Open(WriteTinyModel({.family = family}));
    ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
    const ModelConfig& config = (*checkpoint)->config();
    EXPECT_EQ(config.family, family);
    EXPECT_EQ(config.qkv_bias, std::string_view(family) != "llama");
    EXPECT_THAT(config.name, HasSubstr("latentd-model-"));
    for (const char* part : {"q", "k", "v"}) {
      const auto view = (*checkpoint)->Find(std::string("layers.1.") + part + ".weight");
      ASSERT_TRUE(view.has_value());
      EXPECT_EQ(view->rows, *part == 'q' ? config.q_dim() : config.kv_dim());
      EXPECT_EQ(view->cols, config.hidden_dim);
    }
    EXPECT_EQ((*checkpoint)->Find("lm_head").has_value(), !config.tied_embeddings);
    EXPECT_FALSE((*checkpoint)->Find("layers.2.q.weight").has_value());
  }
}

TEST(CheckpointTest, ShardsHoldTheSameModelAsOneFile) {
  const auto sharded = Checkpoint::Open(kGolden + "/llama-bf16-sharded/");
  ASSERT_TRUE(sharded.ok()) << sharded.status();
  EXPECT_EQ((*sharded)->config().name, "llama-bf16-sharded");
  for (const std::string& name : LayerTensors(**sharded)) {
    EXPECT_THAT(ValuesOf(**sharded, name), Not(IsEmpty())) << name;
    EXPECT_EQ((*sharded)->Find(name)->dtype, DType::kBF16);
  }
}

TEST(CheckpointTest, AGgufFileWithoutANameHasThatOfItsFile) {
  std::string bytes = ReadText(kGolden + "/llama-gguf/model.gguf");
  const size_t key = bytes.find("general.name");
  ASSERT_NE(key, std::string::npos);
  bytes.replace(key, 12, "general.eman");
  const TemporaryFolder folder;
  const auto checkpoint = Checkpoint::Open(folder.Write("tiny-q4.gguf", bytes));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ((*checkpoint)->config().name, "tiny-q4");
}

// A GGUF file that gguf-py wrote states Llama 3's scaling as factors on the frequencies,
// config.json as a formula.
TEST(CheckpointTest, AGgufFileRotatesAsItsConfigWould) {
  const auto gguf = Checkpoint::Open(kGolden + "/llama-gguf/model.gguf");
  const auto hf = Checkpoint::Open(kGolden + "/llama-rope3");
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  ASSERT_TRUE(hf.ok()) << hf.status();
  EXPECT_EQ((*gguf)->Find("layers.0.q.weight")->dtype, DType::kQ8_0);
  const RopeFrequencies from_gguf = ComputeRopeFrequencies((*gguf)->config().rope, 256);
  const RopeFrequencies from_hf = ComputeRopeFrequencies((*hf)->config().rope, 256);
  EXPECT_EQ((*hf)->config().rope.scaling, RopeConfig::Scaling::kLlama3);
  EXPECT_EQ(from_gguf.score_factor, from_hf.score_factor);
  ASSERT_EQ(from_gguf.inv_freq.size(), from_hf.inv_freq.size());
  for (size_t j = 0; j < from_hf.inv_freq.size(); ++j) {
    EXPECT_NEAR(from_gguf.inv_freq[j] / from_hf.inv_freq[j], 1.0, 1e-5) << j;
  }
}

TEST(CheckpointTest, TinyStoriesAgreesInBothFormats) {
  const char* data = std::getenv("LATENTD_TEST_DATA");
  if (data == nullptr) GTEST_SKIP() << "LATENTD_TEST_DATA is not set";
  const std::string folder = std::string(data) + "/models-stories260K/derived";
  const auto hf = Checkpoint::Open(folder);
  const auto gguf = Checkpoint::Open(folder + "/stories260K-f32.gguf");
  ASSERT_TRUE(hf.ok()) << hf.status();
  ASSERT_TRUE(gguf.ok()) << gguf.status();
  for (const std::string& name : LayerTensors(**hf)) {
    const std::vector<float> values = ValuesOf(**hf, name);
    ASSERT_THAT(values, Not(IsEmpty())) << name;
    EXPECT_EQ(values, ValuesOf(**gguf, name)) << name;
  }
  EXPECT_EQ(Fingerprint(**hf), Fingerprint(**gguf));
  EXPECT_EQ((*hf)->config().norm_epsilon, (*gguf)->config().norm_epsilon);
  EXPECT_EQ((*hf)->config().eos_token_ids, (*gguf)->config().eos_token_ids);
  EXPECT_EQ((*gguf)->tokenizer().gguf->tokens.size(), 512u);
}

TEST(CheckpointTest, AVocabularyAloneIsNoModel) {
  const char* data = std::getenv("LATENTD_TEST_DATA");
  if (data == nullptr) GTEST_SKIP() << "LATENTD_TEST_DATA is not set";
  const std::string path =
      std::string(data) + "/tokenizers/llamacpp-vocab-gguf/ggml-vocab-gpt-2.gguf";
  EXPECT_THAT(std::string(Checkpoint::Open(path).status().message()),
              HasSubstr("token_embd.weight is missing"));
}

TEST(CheckpointTest, SaysWhatIsWrongWithAPath) {
  EXPECT_EQ(Checkpoint::Open("/nowhere/model.gguf").status().code(), absl::StatusCode::kNotFound);
  const TemporaryFolder folder;
  EXPECT_THAT(std::string(Checkpoint::Open(folder.path()).status().message()),
              AllOf(HasSubstr(folder.path()), HasSubstr("config.json")));
  EXPECT_THAT(
      std::string(
          Checkpoint::Open(folder.Write("x.gguf", "not a model at all, no")).status().message()),
      HasSubstr("x.gguf"));
}

TEST(CheckpointTest, AnAttentionBiasThatTheConfigPromisesIsNeeded) {
  const std::string folder = WriteTinyModel({});
  std::string config = ReadText(folder + "/config.json");
  config.insert(config.find('{') + 1, "\"attention_bias\": true,");
  std::ofstream(folder + "/config.json") << config;
  EXPECT_THAT(std::string(Checkpoint::Open(folder).status().message()),
              AllOf(HasSubstr(folder), HasSubstr("attention_bias")));
}

TEST(CheckpointTest, ATensorThatDisagreesWithTheConfigIsNamed) {
  const std::string folder = WriteTinyModel({});
  std::string config = ReadText(folder + "/config.json");
  const size_t at = config.find("\"intermediate_size\": 64");
  ASSERT_NE(at, std::string::npos);
  config.replace(at, 23, "\"intermediate_size\": 65");
  std::ofstream(folder + "/config.json") << config;
  EXPECT_THAT(
      std::string(Checkpoint::Open(folder).status().message()),
      AllOf(HasSubstr("mlp.gate_proj.weight"), HasSubstr("[64, 32]"), HasSubstr("[65, 32]")));
}

TEST(CheckpointTest, ATruncatedFileIsAnError) {
  const std::string folder = WriteTinyModel({});
  const std::string path = folder + "/model.safetensors";
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  EXPECT_THAT(std::string(Checkpoint::Open(folder).status().message()),
              AllOf(HasSubstr("model.safetensors"), HasSubstr("ends at byte")));
}

TEST(FingerprintTest, TellsModelsApartByTheirKeysAndValuesAlone) {
  auto fingerprint = [](const TinyModelOptions& options) {
    return Fingerprint(**Checkpoint::Open(WriteTinyModel(options)));
  };
  const std::string base = fingerprint({});
  EXPECT_THAT(base,
              AllOf(testing::SizeIs(32),
                    Each(testing::AnyOf(testing::AllOf(testing::Ge('0'), testing::Le('9')),
                                        testing::AllOf(testing::Ge('a'), testing::Le('f'))))));
  EXPECT_EQ(base, fingerprint({}));
  EXPECT_NE(base, fingerprint({.seed = 2}));
  EXPECT_NE(base, fingerprint({.layers = 1}));
  EXPECT_NE(base, fingerprint({.dtype = DType::kF16}));
}

TEST(FingerprintTest, SeesEveryBitOfTheProjections) {
  const std::string folder =
      WriteTinyModel({.family = "qwen2", .layers = 1, .hidden = 16, .head_dim = 8});
  const std::string path = folder + "/model.safetensors";
  const auto checkpoint = *Checkpoint::Open(folder);
  const std::string before = Fingerprint(*checkpoint);
  const std::string bytes = ReadText(path);
  for (const char* name : {"k.weight", "k.bias", "v.weight", "v.bias"}) {
    // The tensor's last value, wherever it lies in the file.
    const std::vector<float> values = ValuesOf(*checkpoint, std::string("layers.0.") + name);
    const std::string last(reinterpret_cast<const char*>(&values.back()), 4);
    const size_t at = bytes.find(last);
    ASSERT_NE(at, std::string::npos);
    std::string changed = bytes;
    changed[at] ^= 1;
    std::filesystem::remove(path);
    std::ofstream(path, std::ios::binary) << changed;
    EXPECT_NE(before, Fingerprint(**Checkpoint::Open(folder))) << name;
  }
}

}  // namespace
}  // namespace latentd
