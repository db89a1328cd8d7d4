#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/cache_layout.h"
#include "kernels/device.h"

namespace latentd {

// What a pool may take.
struct PoolLimit {
  int64_t bytes = 0;
  std::string reason;  // "--cache-bytes is 5": the flag to change, and how it comes to `bytes`
};

// The largest pool within the limit. INVALID_ARGUMENT gives the reason and what the smallest pool
// takes.
absl::StatusOr<CacheLayout> LargestLayout(const std::vector<CacheLayer>& layers,
                                          int64_t num_sequences, const PoolLimit& limit);

// What `fraction` of a device's memory has left for a pool. INVALID_ARGUMENT for a device without
// memory of its own.
absl::StatusOr<PoolLimit> LimitOfFraction(double fraction, Device& device);

// Random numbers in all of a pool that are small and finite in every codec, as codes and as scales:
// for steps whose time alone is of interest.
absl::Status RandomizePool(Device& device, const DeviceArray<uint8_t>& pool);

}  // namespace latentd
