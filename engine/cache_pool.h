#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"

namespace latentd {

// The memory of the paged cache: one zeroed, page-aligned region, taken from the system as it is
// first touched. Owned by an engine; what lies where is CacheLayout's business.
class CachePool {
 public:
  // RESOURCE_EXHAUSTED naming the bytes when the system refuses.
  static absl::StatusOr<std::unique_ptr<CachePool>> Create(int64_t bytes);
  ~CachePool();
  CachePool(const CachePool&) = delete;
  CachePool& operator=(const CachePool&) = delete;

  uint8_t* data() const { return data_; }

 private:
  CachePool(uint8_t* data, size_t bytes) : data_(data), bytes_(bytes) {}

  uint8_t* const data_;
  const size_t bytes_;
};

}  // namespace latentd
