#pragma once

#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/dtype.h"

namespace latentd {

// A tensor to write: F32, F16 or BF16, borrowed. A view of one row is written as a vector when
// `is_vector`.
struct NamedTensor {
  std::string name;
  TensorView view;
  bool is_vector = false;
};

// Writes a safetensors file: to a temporary name in the same folder, synced, then renamed over
// `path`, so that a reader sees the old file or the whole new one. Names must differ. On an error
// nothing is left behind.
absl::Status WriteSafetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                              const std::map<std::string, std::string>& metadata);

}  // namespace latentd
