#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace latentd {

// A consistent picture of the loop after its latest step. Counters count from the start of the
// loop.
struct ServeStats {
  int running = 0;
  int waiting = 0;
  int64_t blocks_used = 0;
  int64_t blocks_total = 0;
  int64_t seats_total = 0;       // of which `running` are used
  int64_t cache_bytes_used = 0;  // of blocks and seats
  int64_t cache_bytes_total = 0;
  int64_t steps = 0;
  int64_t prompt_tokens = 0;      // computed
  int64_t recomputed_tokens = 0;  // computed again after a preemption
  int64_t generated_tokens = 0;
  int64_t preemptions = 0;
  int64_t requests_finished[5] = {};  // by FinishReason
  absl::Time last_step;        // end of the latest step, or when work last reached an idle loop
  absl::Status engine_status;  // not OK: the engine is dead
};

}  // namespace latentd
