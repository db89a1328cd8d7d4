// The decoder against Hugging Face transformers, on models and numbers made by make_goldens.py.

#include <algorithm>
#include <fstream>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/checkpoint/safetensors_file.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/decoder_harness.h"
#include "tests/testing/tested_backend.h"

namespace latentd {
namespace {

struct GoldenCase {
  std::string model;
  std::string backend;
  bool compressed;
};

// factors.safetensors as latents in 32 bits: what is lost is what the factors lose.
std::unique_ptr<Latents> ReadFactors(const std::string& folder, const ModelConfig& config) {
  absl::StatusOr<SafetensorsFile> opened = SafetensorsFile::Open(folder + "/factors.safetensors");
  EXPECT_TRUE(opened.ok()) << opened.status();
  auto file = std::make_shared<SafetensorsFile>(*std::move(opened));
  auto latents = std::make_unique<Latents>();
  for (int l = 0; l < config.num_layers; ++l) {
    const auto view = [&](const char* factor) {
      const auto tensor = file->tensors.find(absl::StrCat("layers.", l, ".", factor));
      EXPECT_NE(tensor, file->tensors.end()) << factor;
      const StoredTensor& stored = tensor->second;
      return TensorView{.dtype = DType::kF32,
                        .rows = stored.shape[0],
                        .cols = stored.shape[1],
                        .data = stored.data.data()};
    };
    const auto plane = [](const TensorView& down, const TensorView& up, TileOrder order) {
      const int dims = static_cast<int>(up.cols);
      return CachePlane{.latent_heads = static_cast<int>(down.rows / dims),
                        .segments = {{.dims = dims, .codec = Codec::kF32}},
                        .order = order};
    };
    LatentLayer layer{.k_down = view("k_down"),
                      .k_up = view("k_up"),
                      .v_down = view("v_down"),
                      .v_up = view("v_up")};
    layer.cache = {.k = plane(layer.k_down, layer.k_up, TileOrder::kDimMajor),
                   .v = plane(layer.v_down, layer.v_up, TileOrder::kTokenMajor),
                   .key_norms = config.qk_norm ? config.num_kv_heads : 0};
    latents->layers.push_back(layer);
  }
  latents->storage = std::move(file);
  return latents;
}

class GoldenTest : public ::testing::TestWithParam<GoldenCase> {
 protected:
  std::string Folder() const { return GoldenModel(GetParam().model); }

  // A GGUF model's folder holds model.gguf alone beside the golden.
  absl::StatusOr<std::unique_ptr<Checkpoint>> Open() const {
    const bool is_gguf = GetParam().model.ends_with("-gguf");
    return Checkpoint::Open(is_gguf ? Folder() + "/model.gguf" : Folder());
  }
};

TEST_P(GoldenTest, LogitsAndGreedyTokensAreThoseOfTransformers) {
  const bool compressed = GetParam().compressed;
  const auto checkpoint = Open();
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  absl::StatusOr<std::unique_ptr<Ops>> ops = CreateReferenceOps();
  if (GetParam().backend != "reference") ops = CreateFastestOps(2);
  if (absl::IsFailedPrecondition(ops.status())) GTEST_SKIP() << ops.status().message();
  ASSERT_TRUE(ops.ok()) << ops.status();
  std::unique_ptr<Latents> latents;
  if (compressed) latents = ReadFactors(Folder(), (*checkpoint)->config());
  auto harness =
      DecoderHarness::Create(**checkpoint, latents.get(), *std::move(ops), Codec::kF32, 4);
  if (absl::IsUnimplemented(harness.status()) && MayRefuseAttention()) {
    GTEST_SKIP() << harness.status().message();
  }
  ASSERT_TRUE(harness.ok()) << harness.status();
  const std::vector<int32_t> blocks = {2, 0, 3, 1};
  const float products = GetParam().backend == "reference" ? 0.0f : LogitTolerance();
  // Norms of latent keys are kept as 16-bit numbers.
  const float tolerance =
      std::max(compressed && (*checkpoint)->config().qk_norm ? 1e-2f : 1e-3f, products);

  std::ifstream file(Folder() + (compressed ? "/compressed.json" : "/golden.json"));
  const nlohmann::json golden = nlohmann::json::parse(file);
  ASSERT_FALSE(golden["cases"].empty());
  for (const auto& example : golden["cases"]) {
    std::vector<int32_t> tokens = example["prompt_ids"];
    const std::vector<int32_t> greedy = example["greedy_ids"];
    const size_t prompt = tokens.size();
    tokens.insert(tokens.end(), greedy.begin(), greedy.end());
    const auto logits = (*harness)->RunSequence(tokens, blocks, {static_cast<int>(prompt)});
    const std::vector<float> last = example["logits"];
    for (size_t i = 0; i < last.size(); ++i) {
      EXPECT_NEAR(logits[prompt - 1][i], last[i], tolerance) << i;
    }
    if (example.contains("all_logits")) {
      for (size_t p = 0; p < prompt; ++p) {
        const std::vector<float> expected = example["all_logits"][p];
        for (size_t i = 0; i < expected.size(); ++i)
          EXPECT_NEAR(logits[p][i], expected[i], tolerance) << p << " " << i;
      }
    }
    for (size_t i = 0; i < greedy.size(); ++i) {
      const std::vector<float>& row = logits[prompt - 1 + i];
      EXPECT_GE(row[greedy[i]], *std::max_element(row.begin(), row.end()) - products)
          << "token " << i;
    }
  }
}

std::vector<GoldenCase> Cases() {
  std::vector<GoldenCase> cases;
  for (const char* backend : {"reference", TestedBackendName()}) {
    for (const char* model : {"llama", "llama-rope3", "llama-f16", "llama-bf16-sharded", "qwen2",
                              "gpt2", "mistral", "qwen3", "qwen3-gguf", "bloom", "bloom-gguf"}) {
      cases.push_back({model, backend, false});
    }
    for (const char* model : {"llama", "qwen2", "gpt2", "mistral", "qwen3", "bloom"}) {
      cases.push_back({model, backend, true});
    }
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Families, GoldenTest, ::testing::ValuesIn(Cases()), [](const auto& info) {
  std::string name = absl::StrCat(info.param.model, info.param.compressed ? "_compressed_" : "_",
                                  info.param.backend);
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

}  // namespace
}  // namespace latentd
