#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "engine/checkpoint/checkpoint.h"
#include "tests/engine/checkpoint/tensor_values.h"

namespace latentd {

// A checkpoint with some tensors and facts of its own before those of another.
class ChangedCheckpoint final : public Checkpoint {
 public:
  explicit ChangedCheckpoint(const Checkpoint& base) : base_(base), config_(base.config()) {}

  const ModelConfig& config() const override { return config_; }
  ModelConfig& config() { return config_; }
  const TokenizerSource& tokenizer() const override { return base_.tokenizer(); }
  std::optional<TensorView> Find(std::string_view name) const override {
    const auto at = changed_.find(name);
    if (at == changed_.end()) return base_.Find(name);
    const auto& [cols, values] = at->second;
    return TensorView{.dtype = DType::kF32,
                      .rows = static_cast<int64_t>(values.size()) / cols,
                      .cols = cols,
                      .data = reinterpret_cast<const std::byte*>(values.data())};
  }

  // The values of a tensor, to be changed.
  std::vector<float>& Values(const std::string& name) {
    const auto at = changed_.find(name);
    if (at != changed_.end()) return at->second.second;
    const std::optional<TensorView> view = base_.Find(name);
    LATENTD_CHECK(view.has_value());
    return Add(name, view->cols, ValuesOf(base_, name));
  }
  std::vector<float>& Add(const std::string& name, int64_t cols, std::vector<float> values) {
    return (changed_[name] = {cols, std::move(values)}).second;
  }

 private:
  const Checkpoint& base_;
  ModelConfig config_;
  std::map<std::string, std::pair<int64_t, std::vector<float>>, std::less<>> changed_;
};

}  // namespace latentd
