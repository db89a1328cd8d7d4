#include "engine/checkpoint/checkpoint.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/message.h"
#include "base/status_macros.h"
#include "engine/checkpoint/dummy_weights.h"
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
  tokenizer.path = path;
  absl::StatusOr<BoundWeights> weights =
      BindWeights(**family, config, TensorFormat::kGguf, file->tensors());
  if (!weights.ok()) return Named(path, weights.status());
  config.qkv_bias = weights->views.contains("layers.0.q.bias");
  return std::make_unique<OpenedCheckpoint>(std::move(config), std::move(tokenizer),
                                            *std::move(weights), std::move(file));
}

constexpr size_t kMaxConfigBytes = 16 << 20;

struct HfModel {
  const Family* family = nullptr;
  ModelConfig config;
};

// A folder's config.json, or a file like it with another name.
absl::StatusOr<HfModel> ReadHfModel(const std::string& folder, const std::string& config_name) {
  ASSIGN_OR_RETURN(const std::string config_text,
                   ReadFolderFile(folder, config_name, kMaxConfigBytes));
  if (config_text.empty()) {
    return absl::NotFoundError(Message("there is no ", config_name, ", so this is no model"));
  }
  ASSIGN_OR_RETURN(const nlohmann::json json, ParseJson(config_text, config_name));
  ASSIGN_OR_RETURN(const std::string generation_text,
                   ReadFolderFile(folder, "generation_config.json", kMaxConfigBytes));
  nlohmann::json generation;
  if (!generation_text.empty()) {
    ASSIGN_OR_RETURN(generation, ParseJson(generation_text, "generation_config.json"));
  }
  HfModel model;
  ASSIGN_OR_RETURN(model.family, FamilyOfHfConfig(json));
  ASSIGN_OR_RETURN(model.config, ReadHfConfig(json, generation, *model.family));
  return model;
}

std::string NameOfFolder(const std::string& folder) {
  return std::filesystem::path(folder + "/.").lexically_normal().parent_path().filename();
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenHfFolder(const std::string& folder) {
  ASSIGN_OR_RETURN(HfModel model, ReadHfModel(folder, "config.json"));
  ModelConfig& config = model.config;
  ASSIGN_OR_RETURN(TokenizerSource tokenizer, ReadHfTokenizer(folder));
  ASSIGN_OR_RETURN(HfTensors files, OpenHfTensors(folder));
  ASSIGN_OR_RETURN(BoundWeights weights,
                   BindWeights(*model.family, config, TensorFormat::kHuggingFace, files.tensors));
  const bool has_bias = weights.views.contains("layers.0.q.bias");
  if (config.qkv_bias && !has_bias) {
    return absl::InvalidArgumentError(
        "config.json says \"attention_bias\": true, but layer 0 has no bias of q");
  }
  config.qkv_bias = has_bias;
  config.name = NameOfFolder(folder);
  auto storage =
      std::make_shared<std::vector<std::shared_ptr<const void>>>(std::move(files.storage));
  return std::make_unique<OpenedCheckpoint>(std::move(config), std::move(tokenizer),
                                            std::move(weights), std::move(storage));
}

// `path` is a folder with a config.json, or such a file by itself.
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenDummyModel(const std::string& path,
                                                           const DummyOptions& options) {
  const std::filesystem::path file = IsFolder(path) ? path + "/config.json" : path;
  const std::string folder = file.has_parent_path() ? file.parent_path().string() : ".";
  ASSIGN_OR_RETURN(HfModel model, ReadHfModel(folder, file.filename()));
  ModelConfig& config = model.config;
  config.name = file.filename() == "config.json" ? NameOfFolder(folder) : file.stem().string();
  config.max_context = std::max(config.max_context, options.min_context);
  ASSIGN_OR_RETURN(TokenizerSource tokenizer, ReadHfTokenizer(folder));
  if (tokenizer.tokenizer_json.empty()) tokenizer = DummyTokenizer();
  ASSIGN_OR_RETURN(BoundWeights weights, DummyWeights(*model.family, config, options.seed));
  config.qkv_bias = weights.views.contains("layers.0.q.bias");
  return std::make_unique<OpenedCheckpoint>(std::move(config), std::move(tokenizer),
                                            std::move(weights), nullptr);
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path) {
  if (!IsFolder(path)) return OpenGguf(path);
  absl::StatusOr<std::unique_ptr<Checkpoint>> opened = OpenHfFolder(path);
  if (!opened.ok()) return Named(path, opened.status());
  return opened;
}

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::OpenDummy(const std::string& path,
                                                                  const DummyOptions& options) {
  absl::StatusOr<std::unique_ptr<Checkpoint>> opened = OpenDummyModel(path, options);
  if (!opened.ok()) return Named(path, opened.status());
  return opened;
}

}  // namespace latentd
