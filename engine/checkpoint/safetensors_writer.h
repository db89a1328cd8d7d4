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

// Writes a safetensors file, whole or not at all (AtomicFile). Names must differ.
absl::Status WriteSafetensors(const std::string& path, const std::vector<NamedTensor>& tensors,
                              const std::map<std::string, std::string>& metadata);

}  // namespace latentd
