#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/checkpoint/stored_tensor.h"

namespace latentd {

// Longer headers are neither read nor written; the largest published ones have a few hundred KB.
inline constexpr uint64_t kMaxSafetensorsHeader = 32 << 20;

// A safetensors file. Everything in its header has been checked: tensors lie inside the file, do
// not overlap, leave no holes, and have as many bytes as type and shape say.
//
//   file   = u64 header length | header | tensor data
//   header = JSON {name: {"dtype", "shape", "data_offsets": [begin, end)}, ...,
//                  "__metadata__": {string: string}}
struct SafetensorsFile {
  StoredTensors tensors;
  std::map<std::string, std::string> metadata;
  std::shared_ptr<const void> storage;  // what the tensors' bytes lie in

  // `name` stands for the file in messages; `bytes` must outlive the result.
  static absl::StatusOr<SafetensorsFile> Parse(absl::Span<const std::byte> bytes,
                                               const std::string& name);
  static absl::StatusOr<SafetensorsFile> Open(const std::string& path);
};

}  // namespace latentd
