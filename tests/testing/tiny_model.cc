#include "tests/testing/tiny_model.h"

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "base/check.h"
#include "base/message.h"
#include "engine/checkpoint/safetensors_writer.h"
#include "engine/model/families.h"
#include "tests/testing/random_values.h"

namespace latentd {
namespace {

// Folders that go when the process ends.
class TemporaryFolders {
 public:
  ~TemporaryFolders() {
    std::error_code ignored;
    for (const std::string& folder : folders_) std::filesystem::remove_all(folder, ignored);
  }
  std::string Create() {
    std::string path = (std::filesystem::temp_directory_path() / "latentd-model-XXXXXX").string();
    LATENTD_CHECK(mkdtemp(path.data()) != nullptr);
    folders_.push_back(path);
    return path;
  }

 private:
  std::vector<std::string> folders_;
};

std::vector<std::byte> Encode(const std::vector<float>& values, DType dtype) {
  std::vector<std::byte> bytes(RowBytes(dtype, static_cast<int64_t>(values.size())));
  for (size_t i = 0; i < values.size(); ++i) {
    if (dtype == DType::kF32) {
      std::memcpy(&bytes[i * 4], &values[i], 4);
      continue;
    }
    uint32_t word;
    std::memcpy(&word, &values[i], 4);
    const uint16_t half =
        dtype == DType::kF16 ? FloatToHalf(values[i]) : static_cast<uint16_t>(word >> 16);
    std::memcpy(&bytes[i * 2], &half, 2);
  }
  return bytes;
}

ModelConfig ConfigOf(const TinyModelOptions& options, const Family& family) {
  return {.family = options.family,
          .vocab_size = options.vocab,
          .num_layers = options.layers,
          .hidden_dim = options.hidden,
          .mlp_dim = options.mlp_dim,
          .num_heads = options.heads,
          .num_kv_heads = family.hf_keys.num_kv_heads == nullptr ? options.heads : options.kv_heads,
          .head_dim = options.head_dim,
          .max_context = options.max_context,
          .tied_embeddings = family.tied_by_default};
}

void WriteConfig(const std::string& path, const ModelConfig& config, const Family& family) {
  const HfConfigKeys& keys = family.hf_keys;
  nlohmann::json json = {
      {"architectures", {std::string(family.hf_architecture)}},
      {"vocab_size", config.vocab_size},
      {keys.num_layers, config.num_layers},
      {keys.hidden_dim, config.hidden_dim},
      {keys.num_heads, config.num_heads},
      {keys.mlp_dim, config.mlp_dim},
      {keys.max_context, config.max_context},
      {keys.norm_epsilon, 1e-5},
      {"head_dim", config.head_dim},
      {"tie_word_embeddings", config.tied_embeddings},
      {"bos_token_id", 1},
      {"eos_token_id", 2},
  };
  if (keys.activation != nullptr) {
    json[keys.activation] = std::string(family.activations.front());
  }
  if (keys.sliding_window != nullptr) json[keys.sliding_window] = nullptr;
  if (keys.num_kv_heads != nullptr) json[keys.num_kv_heads] = config.num_kv_heads;
  std::ofstream(path) << json.dump(1);
}

float DeviationOf(const WeightRule& rule, const ModelConfig& config) {
  if (rule.rows == Extent::kOne) return 0.1f;
  if (!rule.per_layer()) return 0.5f;
  return 1.0f / std::sqrt(static_cast<float>(ExtentOf(rule.cols, config)));
}

}  // namespace

std::string WriteTinyModel(const TinyModelOptions& options) {
  static TemporaryFolders folders;
  const Family* family = FindFamily(options.family);
  LATENTD_CHECK(family != nullptr);
  const ModelConfig config = ConfigOf(options, *family);
  const std::string folder = folders.Create();
  WriteConfig(folder + "/config.json", config, *family);

  std::set<std::string> written;  // parts of a fused tensor name it several times
  std::vector<std::unique_ptr<std::vector<std::byte>>> storage;
  std::vector<NamedTensor> tensors;
  for (const WeightRule& rule : family->weights) {
    if (rule.presence == Presence::kOptional) continue;
    if (rule.presence == Presence::kUntied && config.tied_embeddings) continue;
    for (int layer = 0; layer < (rule.per_layer() ? config.num_layers : 1); ++layer) {
      const bool has_prefix = rule.presence != Presence::kUntied;
      std::string name = Message(has_prefix ? family->hf_prefix : "", rule.hf);
      const size_t at = name.find(".N.");
      if (at != std::string::npos) name.replace(at + 1, 1, std::to_string(layer));
      if (!written.insert(name).second) continue;

      const bool is_vector = rule.rows == Extent::kOne;
      const bool is_fused = rule.slice != RowSlice::kAll;
      int64_t rows = is_vector ? 1 : ExtentOf(rule.rows, config);
      int64_t cols = ExtentOf(rule.cols, config);
      if (is_fused) (is_vector ? cols : rows) = config.q_dim() + 2 * config.kv_dim();
      if (rule.hf_transposed) std::swap(rows, cols);
      std::vector<float> values = GaussianValues(
          rows * cols, options.seed * 1000003 + written.size(), DeviationOf(rule, config));
      const bool is_norm_weight = is_vector && name.ends_with(".weight");
      if (is_norm_weight) {
        for (float& value : values) value += 1.0f;
      }
      storage.push_back(std::make_unique<std::vector<std::byte>>(Encode(values, options.dtype)));
      tensors.push_back({.name = name,
                         .view = {.dtype = options.dtype,
                                  .rows = rows,
                                  .cols = cols,
                                  .data = storage.back()->data()},
                         .is_vector = is_vector});
    }
  }
  LATENTD_CHECK(WriteSafetensors(folder + "/model.safetensors", tensors, {}).ok());
  return folder;
}

}  // namespace latentd
