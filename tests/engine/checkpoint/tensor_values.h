#pragma once

#include <string_view>
#include <vector>

#include "engine/checkpoint/checkpoint.h"

namespace latentd {

// Every value of a matrix as fp32.
inline std::vector<float> ValuesOf(const TensorView& view) {
  std::vector<float> values(view.rows * view.cols);
  for (int64_t r = 0; r < view.rows; ++r) {
    DequantizeRow(view, r, absl::MakeSpan(values).subspan(r * view.cols, view.cols));
  }
  return values;
}

// The same of a checkpoint's tensor; empty when there is none of that name.
inline std::vector<float> ValuesOf(const Checkpoint& checkpoint, std::string_view name) {
  const std::optional<TensorView> view = checkpoint.Find(name);
  return view.has_value() ? ValuesOf(*view) : std::vector<float>();
}

}  // namespace latentd
