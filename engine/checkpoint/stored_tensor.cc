#include "engine/checkpoint/stored_tensor.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace latentd {

std::string ShapeText(absl::Span<const int64_t> shape) {
  return absl::StrCat("[", absl::StrJoin(shape, ", "), "]");
}

std::optional<int64_t> NumValues(absl::Span<const int64_t> shape) {
  int64_t product = 1;
  for (const int64_t extent : shape) {
    if (extent < 0 || __builtin_mul_overflow(product, extent, &product)) return std::nullopt;
    if (product > int64_t{1} << 62) return std::nullopt;
  }
  return product;
}

}  // namespace latentd
