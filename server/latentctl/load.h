#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "server/latentctl/client.h"

namespace latentd {

// A load of equal requests with random prompts.
struct LoadOptions {
  int requests = 64;
  int concurrency = 8;  // closed loop: so many at a time, the next when one ends
  double rate = 0;  // > 0: open loop, arrivals per second (Poisson), whatever is still unanswered
  int prompt_tokens = 128;
  int output_tokens = 64;  // exactly: end-of-sequence is ignored
  double cancel = 0;    // share of the requests that the client cancels halfway through the output
  int deadline_ms = 0;  // of each request; 0: none
  int64_t seed = 1;     // of prompts, arrival times and cancels
  int vocab_size = 0;
};

// One request as the client saw it. Times count from the moment at which it was due to be sent, so
// an open loop does not hide the waiting that a slow server causes (coordinated omission).
struct LoadRow {
  int index = 0;
  absl::Duration due;  // since the start of the load
  absl::Duration sent_late;
  absl::Duration ttft;               // to the first token; only when output_tokens > 0
  absl::Duration e2e;                // to the end
  std::vector<absl::Duration> gaps;  // between the messages that brought tokens
  int output_tokens = 0;
  absl::Status status;
  std::string reason;  // of the server; empty when it sent none
  bool cancelled_by_us = false;

  // Time per output token after the first; only when output_tokens > 1.
  absl::Duration tpot() const { return (e2e - ttft) / (output_tokens - 1); }
};

struct LoadResult {
  std::vector<LoadRow> rows;  // by index
  absl::Duration duration;    // first due to last end
};

LoadResult RunLoad(const std::string& target, const LoadOptions& options);

}  // namespace latentd
