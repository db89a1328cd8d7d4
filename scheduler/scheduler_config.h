#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace latentd {

struct SchedulerConfig {
  int max_batch_tokens = 512;     // token rows of one step
  int max_sequences = 64;         // running at once
  int max_queued_requests = 256;  // waiting, beyond the running ones
  int64_t max_queued_tokens = 1 << 20;
};

// INVALID_ARGUMENT names the limit that is below its least value, and both.
absl::Status Validate(const SchedulerConfig& config);

}  // namespace latentd
