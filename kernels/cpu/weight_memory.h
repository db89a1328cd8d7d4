#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace latentd {

// Memory of packed weights: zeroed areas cut one after the other from large regions that the system
// is asked to back with huge pages. A step reads every weight once, so with small pages the
// translation of addresses would cost more than the products. Used by one thread; areas keep their
// region alive and may outlive this object.
class WeightMemory {
 public:
  // At least `bytes`, aligned to 64. RESOURCE_EXHAUSTED names the size.
  absl::StatusOr<std::shared_ptr<uint8_t[]>> Allocate(size_t bytes);

 private:
  std::shared_ptr<uint8_t[]> region_;
  size_t region_bytes_ = 0;
  size_t used_ = 0;
};

}  // namespace latentd
