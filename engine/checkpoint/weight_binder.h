#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/stored_tensor.h"
#include "engine/model/families.h"
#include "engine/model/model_config.h"

namespace latentd {

enum class TensorFormat : uint8_t { kHuggingFace, kGguf };

// A model's weights under their canonical names. Views point into the mapped files, or into `owned`
// where the bytes had to be put into another order.
struct BoundWeights {
  std::map<std::string, TensorView, std::less<>> views;
  std::vector<std::shared_ptr<const void>> owned;
};

// Finds every weight of the family's table among the tensors of a file, checks type and shape
// against the config, and brings it into canonical order: slices fused tensors, transposes [in,
// out] matrices, un-interleaves RoPE rows. INVALID_ARGUMENT names the file's tensor and both
// shapes. The tensors' bytes must outlive the result.
absl::StatusOr<BoundWeights> BindWeights(const Family& family, const ModelConfig& config,
                                         TensorFormat format, const StoredTensors& tensors);

}  // namespace latentd
