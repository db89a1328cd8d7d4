#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "base/message.h"
#include "engine/checkpoint/checkpoint.h"
#include "tests/testing/random_values.h"

namespace latentd {

// A model whose config was changed after it was read: what the decoder makes of a config that no
// tiny model's family has. Gets random norms of q and k where the change asks for them.
class AlteredCheckpoint final : public Checkpoint {
 public:
  AlteredCheckpoint(std::unique_ptr<Checkpoint> base,
                    const std::function<void(ModelConfig&)>& change)
      : base_(std::move(base)), config_(base_->config()) {
    change(config_);
    if (!config_.qk_norm || base_->config().qk_norm) return;
    for (int l = 0; l < config_.num_layers; ++l) {
      for (const char* norm : {"q_norm", "k_norm"}) {
        std::vector<float> weight = GaussianValues(config_.head_dim, 100 + added_.size(), 0.2f);
        for (float& value : weight) value += 1.0f;
        added_.emplace(Message("layers.", l, ".", norm, ".weight"), std::move(weight));
      }
    }
  }

  const ModelConfig& config() const override { return config_; }
  const TokenizerSource& tokenizer() const override { return base_->tokenizer(); }
  std::optional<TensorView> Find(std::string_view name) const override {
    const auto it = added_.find(std::string(name));
    if (it == added_.end()) return base_->Find(name);
    return TensorView{.dtype = DType::kF32,
                      .rows = 1,
                      .cols = static_cast<int64_t>(it->second.size()),
                      .data = reinterpret_cast<const std::byte*>(it->second.data())};
  }

 private:
  const std::unique_ptr<Checkpoint> base_;
  ModelConfig config_;
  std::map<std::string, std::vector<float>> added_;
};

}  // namespace latentd
