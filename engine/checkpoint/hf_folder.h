#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/stored_tensor.h"

namespace latentd {

// The tensors of a Hugging Face folder: model.safetensors, or the shards that
// model.safetensors.index.json names.
struct HfTensors {
  StoredTensors tensors;
  std::vector<std::shared_ptr<const void>> storage;  // what their bytes lie in
};
absl::StatusOr<HfTensors> OpenHfTensors(const std::string& folder);

// The tokenizer files and the chat template of a folder; files that are absent leave their fields
// empty.
absl::StatusOr<TokenizerSource> ReadHfTokenizer(const std::string& folder);

// The contents of a file of a folder; empty when it is absent. INVALID_ARGUMENT when it passes
// `max_bytes`.
absl::StatusOr<std::string> ReadFolderFile(const std::string& folder, const std::string& name,
                                           size_t max_bytes);

}  // namespace latentd
