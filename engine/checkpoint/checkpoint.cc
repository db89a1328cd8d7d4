#include "engine/checkpoint/checkpoint.h"

#include <sys/stat.h>

#include <utility>

#include "base/message.h"
#include "base/status_macros.h"
#include "engine/checkpoint/gguf_config.h"
#include "engine/checkpoint/gguf_file.h"
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

absl::Status Named(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), Message(path, ": ", status.message()));
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenGguf(const std::string& path) {
  ASSIGN_OR_RETURN(std::shared_ptr<const GgufFile> file, GgufFile::Open(path));
  ASSIGN_OR_RETURN(const auto architecture, file->String("general.architecture"));
  const absl::StatusOr<const Family*> family = FindGgufFamily(architecture.value_or(""));
  if (!family.ok()) return Named(path, family.status());
  ASSIGN_OR_RETURN(ModelConfig config, ReadGgufConfig(*file, **family));
  ASSIGN_OR_RETURN(TokenizerSource tokenizer, ReadGgufTokenizer(*file));
  absl::StatusOr<BoundWeights> weights =
      BindWeights(**family, config, TensorFormat::kGguf, file->tensors());
  if (!weights.ok()) return Named(path, weights.status());
  config.qkv_bias = weights->views.contains("layers.0.q.bias");
  return std::make_unique<OpenedCheckpoint>(std::move(config), std::move(tokenizer),
                                            *std::move(weights), std::move(file));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Checkpoint>> Checkpoint::Open(const std::string& path) {
  return OpenGguf(path);
}

}  // namespace latentd
