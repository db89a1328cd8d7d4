#pragma once

#include <string_view>
#include <vector>

#include "engine/checkpoint/checkpoint.h"

namespace latentd {

// Every value of a tensor as fp32; empty when the checkpoint has none of that name.
inline std::vector<float> ValuesOf(const Checkpoint& checkpoint, std::string_view name) {
  const std::optional<TensorView> view = checkpoint.Find(name);
  if (!view.has_value()) return {};
  std::vector<float> values(view->rows * view->cols);
  for (int64_t r = 0; r < view->rows; ++r) {
    DequantizeRow(*view, r, absl::MakeSpan(values).subspan(r * view->cols, view->cols));
  }
  return values;
}

}  // namespace latentd
