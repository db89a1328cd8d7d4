#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/time/time.h"
#include "scheduler/request.h"

namespace latentd {

// A request at work. It has tokens, and the first num_computed of them are in the cache; a step
// computes more. Whether it waits or runs is which of the scheduler's lists holds it. Owned by the
// scheduler; no other thread ever sees one.
struct Sequence {
  std::shared_ptr<const Request> request;
  int64_t arrival_number = 0;   // 0, 1, ... as the scheduler took them in
  std::vector<int32_t> tokens;  // prompt, then output
  int num_computed = 0;         // <= tokens.size(); 0 while waiting
  // Block i holds tokens [64 i, 64 (i + 1)); the first num_behind are -1: they fell behind the
  // model's window and were given back. Empty while waiting.
  std::vector<int32_t> blocks;
  int64_t num_behind = 0;
  // Its place for what it keeps beside its blocks (engine/batch.h); -1 while waiting.
  int32_t seat = -1;

  int max_computed = 0;  // the most that num_computed has been: below it, computing is repeating
  int64_t peak_blocks = 0;
  int preemptions = 0;
  absl::Time first_scheduled = absl::InfiniteFuture();
  absl::Time first_token = absl::InfiniteFuture();
  absl::Time last_token = absl::InfiniteFuture();

  int64_t num_held() const { return static_cast<int64_t>(blocks.size()) - num_behind; }
  int num_tokens() const { return static_cast<int>(tokens.size()); }
  int num_pending() const { return num_tokens() - num_computed; }
  int num_prompt_tokens() const { return static_cast<int>(request->prompt.size()); }
  int num_generated() const { return num_tokens() - num_prompt_tokens(); }
};

}  // namespace latentd
