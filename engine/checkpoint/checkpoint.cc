#include "engine/checkpoint/checkpoint.h"

#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/message.h"
#include "base/status_macros.h"
#include "engine/checkpoint/gguf_config.h"
#include "engine/checkpoint/gguf_file.h"
#include "engine/checkpoint/hf_config.h"
#include "engine/checkpoint/hf_folder.h"
#include "engine/checkpoint/json.h"
#include "engine/checkpoint/weight_binder.h"
#include "engine/model/families.h"

namespace latentd {
namespace {

class OpenedCheckpoint : public Checkpoint {
 public:
  OpenedCheckpoint(ModelConfig config, TokenizerSource tokenizer, BoundWeights weights,
                   std::shared_ptr<const void> storage)
      : config_(std::move(config)),
        tokenizer_(std::move(tokenizer)),
        weights_(std::move(weights)),
        storage_(std::move(storage)) {}

  const ModelConfig& config() const override { return config_; }
  const TokenizerSource& tokenizer() const override { return tokenizer_; }
  std::optional<TensorView> Find(std::string_view name) const override {
    const auto it = weights_.views.find(name);
    if (it == weights_.views.end()) return std::nullopt;
    return it->second;
  }

 private:
  const ModelConfig config_;
  const TokenizerSource tokenizer_;
  const BoundWeights weights_;
  const std::shared_ptr<const void> storage_;  // the mapped files that weights_ points into
};

// The status with the path in front, unless the message has it already.
absl::Status Named(const std::string& path, const absl::Status& status) {
  if (status.message().find(path) != absl::string_view::npos) return status;
  return absl::Status(status.code(), Message(path, ": ", status.message()));
}

bool IsFolder(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_directory(path, ignored);
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenGguf(const std::string& path) {
  ASSIGN_OR_RETURN(std::shared_ptr<const GgufFile> file, GgufFile::Open(path));
  ASSIGN_OR_RETURN(const auto architecture, file->String("general.architecture"));
  const absl::StatusOr<const Family*> family = FindGgufFamily(architecture.value_or(""));
  if (!family.ok()) return Named(path, family.status());
  ASSIGN_OR_RETURN(ModelConfig config, ReadGgufConfig(*file, **family));
  if (config.name.empty()) config.name = std::filesystem::path(path).stem();
  ASSIGN_OR_RETURN(TokenizerSource tokenizer, ReadGgufTokenizer(*file));
  absl::StatusOr<BoundWeights> weights =
      BindWeights(**family, config, TensorFormat::kGguf, file->tensors());
  if (!weights.ok()) return Named(path, weights.status());
  config.qkv_bias = weights->views.contains("layers.0.q.bias");
  return std::make_unique<OpenedCheckpoint>(std::move(config), std::move(tokenizer),
                                            *std::move(weights), std::move(file));
}

constexpr size_t kMaxConfigBytes = 16 << 20;

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenHfFolder(const std::string& folder) {
  ASSIGN_OR_RETURN(const std::string config_text,
                   ReadFolderFile(folder, "config.json", kMaxConfigBytes));
  if (config_text.empty()) {
    return absl::NotFoundError("there is no config.json, so this is no model");
  }
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(config_text, "config.json"));
  ASSIGN_OR_RETURN(const std::string generation_text,
                   ReadFolderFile(folder, "generation_config.json", kMaxConfigBytes));
  nlohmann::json generation;
  if (!generation_text.empty()) {
    ASSIGN_OR_RETURN(generation, ParseJson(generation_text, "generation_config.json"));
  }
  ASSIGN_OR_RETURN(const Family* family, FamilyOfHfConfig(json));
  ASSIGN_OR_RETURN(ModelConfig config, ReadHfConfig(json, generation, *family));
  ASSIGN_OR_RETURN(TokenizerSource tokenizer, ReadHfTokenizer(folder));
  ASSIGN_OR_RETURN(HfTensors files, OpenHfTensors(folder));
  ASSIGN_OR_RETURN(BoundWeights weights,
                   BindWeights(*family, config, TensorFormat::kHuggingFace, files.tensors));
  const bool has_bias = weights.views.contains("layers.0.q.bias");
  if (config.qkv_bias && !has_bias) {
    return absl::InvalidArgumentError(
        "config.json says \"attention_bias\": true, but layer 0 has no bias of q");
  }
  config.qkv_bias = has_bias;
  config.name = std::filesystem::path(folder + "/.").lexically_normal().parent_path().filename();
  auto storage =
      std::make_shared<std::vector<std::shared_ptr<const void>>>(std::move(files.storage));
  return std::make_unique<OpenedCheckpoint>(std::move(config), std::move(tokenizer),
                                            std::move(weights), std::move(storage));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path) {
  if (!IsFolder(path)) return OpenGguf(path);
  absl::StatusOr<std::unique_ptr<Checkpoint>> opened = OpenHfFolder(path);
  if (!opened.ok()) return Named(path, opened.status());
  return opened;
}

}  // namespace latentd
