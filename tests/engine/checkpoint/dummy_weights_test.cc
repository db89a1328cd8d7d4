#include "engine/checkpoint/dummy_weights.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>

#include "engine/checkpoint/dummy_numbers.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/engine/checkpoint/temporary_folder.h"
#include "tests/engine/checkpoint/tensor_values.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

using ::testing::AllOf;
using ::testing::Each;
using ::testing::HasSubstr;

std::unique_ptr<Checkpoint> OpenDummy(const std::string& path, const DummyOptions& options = {}) {
  auto checkpoint = Checkpoint::OpenDummy(path, options);
  EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
  return *std::move(checkpoint);
}

// A folder with the config of a tiny model alone.
std::string TinyConfig(const TinyModelOptions& options) {
  const std::string folder = WriteTinyModel(options);
  std::filesystem::remove(folder + "/model.safetensors");
  return folder;
}

TEST(DummyNumbersTest, MatricesAreNormalNumbersAndDifferByNameAndSeed) {
  const DummyNumbers numbers = *DummyNumbers::Create(300 * 512, 1);
  const DummyNumbers others = *DummyNumbers::Create(300 * 512, 2);
  const std::vector<float> values = ValuesOf(numbers.Matrix(300, 512, 7));
  double sum = 0, squares = 0;
  for (const float value : values) {
    sum += value;
    squares += double{value} * value;
  }
  const auto count = static_cast<double>(values.size());
  EXPECT_NEAR(sum / count, 0, 2e-4);
  EXPECT_NEAR(std::sqrt(squares / count), 0.02, 2e-4);
  EXPECT_EQ(values, ValuesOf(numbers.Matrix(300, 512, 7)));
  EXPECT_NE(values, ValuesOf(numbers.Matrix(300, 512, 8)));
  EXPECT_NE(values, ValuesOf(others.Matrix(300, 512, 7)));
}

TEST(DummyNumbersTest, NoTwoRowsOfALargeMatrixAreEqual) {
  constexpr int64_t kRows = 4096, kCols = 1024;  // four times around
  const DummyNumbers numbers = *DummyNumbers::Create(kRows * kCols, 1);
  std::set<std::vector<float>> starts;
  for (int64_t r = 0; r < kRows; ++r) {
    TensorView row = numbers.Matrix(kRows, kCols, 0);
    row.data = row.row(r);
    row.rows = 1;
    row.cols = 16;
    starts.insert(ValuesOf(row));
  }
  EXPECT_EQ(std::ssize(starts), kRows);
}

// The same tensors as the model's own files have.
TEST(DummyWeightsTest, EveryFamilyGetsAllItsTensors) {
  for (const Family& family : Families()) {
    const std::string folder = WriteTinyModel({.family = std::string(family.name)});
    const auto real = Checkpoint::Open(folder);
    ASSERT_TRUE(real.ok()) << real.status();
    const auto dummy = OpenDummy(folder);
    EXPECT_EQ(dummy->config().qkv_bias, (*real)->config().qkv_bias) << family.name;
    EXPECT_EQ(dummy->config().name, (*real)->config().name);
    for (const WeightRule& rule : family.weights) {
      for (const int layer : {0, 1, 2}) {
        const std::string name = WithLayer(rule.name, layer);
        const auto wanted = (*real)->Find(name), found = dummy->Find(name);
        ASSERT_EQ(found.has_value(), wanted.has_value()) << family.name << " " << name;
        if (!found.has_value()) continue;
        EXPECT_EQ(found->rows, wanted->rows) << name;
        EXPECT_EQ(found->cols, wanted->cols) << name;
        if (!name.ends_with("norm.weight")) continue;
        EXPECT_THAT(ValuesOf(*found), Each(1.0f)) << name;
      }
    }
  }
}

TEST(DummyWeightsTest, AConfigsAttentionBiasIsThere) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("biased.json", R"({
    "architectures": ["LlamaForCausalLM"], "vocab_size": 10, "num_hidden_layers": 1, "hidden_size": 32,
    "num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 64, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "attention_bias": true})");
  const auto dummy = OpenDummy(path);
  EXPECT_EQ(dummy->config().name, "biased");
  EXPECT_TRUE(dummy->config().qkv_bias);
  EXPECT_TRUE(dummy->Find("layers.0.o.bias").has_value());
  EXPECT_FALSE(dummy->Find("layers.0.gate.bias").has_value());
}

TEST(DummyWeightsTest, AreAFunctionOfConfigAndSeed) {
  const std::string folder = TinyConfig({});
  const std::string print = Fingerprint(*OpenDummy(folder));
  EXPECT_EQ(Fingerprint(*OpenDummy(folder + "/config.json")), print);
  EXPECT_EQ(OpenDummy(folder + "/config.json")->config().name, OpenDummy(folder)->config().name);
  EXPECT_NE(Fingerprint(*OpenDummy(folder, {.seed = 2})), print);
}

TEST(DummyWeightsTest, TheContextIsAsLongAsWanted) {
  const std::string folder = TinyConfig({.max_context = 256});
  EXPECT_EQ(OpenDummy(folder)->config().max_context, 256);
  EXPECT_EQ(OpenDummy(folder, {.min_context = 100})->config().max_context, 256);
  EXPECT_EQ(OpenDummy(folder, {.min_context = 10000})->config().max_context, 10000);
}

// A model of billions of weights takes its largest one's memory.
TEST(DummyWeightsTest, AllMatricesLieInOneBlock) {
  const std::string folder = TinyConfig({.layers = 100, .hidden = 512, .vocab = 2000});
  const auto dummy = OpenDummy(folder);
  const std::byte *first = nullptr, *last = nullptr;
  for (int layer = 0; layer < 100; ++layer) {
    const TensorView view = *dummy->Find(WithLayer("layers.N.up.weight", layer));
    if (first == nullptr || view.data < first) first = view.data;
    last = std::max(last, view.data + view.bytes());
  }
  EXPECT_LE(last - first, 2 * (2000 * 512 + (1 << 20)));
}

TEST(DummyWeightsTest, AWeightThatTheMachineCannotHoldIsRefused) {
  const TemporaryFolder folder;
  const std::string path = folder.Write("vast.json", R"({
    "architectures": ["LlamaForCausalLM"], "vocab_size": 10, "num_hidden_layers": 1, "hidden_size": 1048576,
    "num_attention_heads": 2, "head_dim": 64, "intermediate_size": 4194304, "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5, "hidden_act": "silu"})");
  const absl::Status status = Checkpoint::OpenDummy(path, {}).status();
  EXPECT_TRUE(absl::IsResourceExhausted(status)) << status;
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("vast.json: the weight layers.N."), HasSubstr("4194304"),
                    HasSubstr("take 8.00 TiB of memory, this machine has ")));
}

TEST(DummyWeightsTest, AnErrorNamesTheFile) {
  EXPECT_THAT(std::string(Checkpoint::OpenDummy("/no/such.json", {}).status().message()),
              HasSubstr("/no/such.json"));
  const TemporaryFolder folder;
  EXPECT_THAT(std::string(Checkpoint::OpenDummy(folder.path(), {}).status().message()),
              HasSubstr("there is no config.json"));
  EXPECT_THAT(
      std::string(Checkpoint::OpenDummy(folder.Write("bad.json", "{"), {}).status().message()),
      HasSubstr("bad.json"));
}

}  // namespace
}  // namespace latentd
