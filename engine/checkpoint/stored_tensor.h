#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "kernels/dtype.h"

namespace latentd {

// A tensor as a checkpoint file stores it, before it gets its canonical name. Its bytes lie inside
// the mapped file and are as many as type and shape say; they are aligned only as the file aligns
// them.
struct StoredTensor {
  std::string type;            // the file's own name of the type
  std::optional<DType> dtype;  // nullopt: a type that no weight may have (integers, float8)
  std::vector<int64_t> shape;  // outermost first, as in PyTorch
  absl::Span<const std::byte> data;
};

// By the file's own tensor names.
using StoredTensors = std::map<std::string, StoredTensor, std::less<>>;

// "[3, 4]"
std::string ShapeText(absl::Span<const int64_t> shape);

// Product of the extents, or nullopt when one is negative or the product passes 2^62.
std::optional<int64_t> NumValues(absl::Span<const int64_t> shape);

}  // namespace latentd
