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

// INVALID_ARGUMENT names the limit and the two numbers that disagree. Every running sequence has a
// row in every step, so max_sequences is at most max_batch_tokens: else the latest would starve.
absl::Status Validate(const SchedulerConfig& config);

}  // namespace latentd
