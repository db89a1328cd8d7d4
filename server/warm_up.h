#pragma once

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "scheduler/serve_loop.h"
#include "server/served_model.h"

namespace latentd {

// What a warm-up generation took.
struct WarmUpTimes {
  absl::Duration first_token;
  absl::Duration total;
};

// Generates a few tokens through the loop, so that whoever comes first finds touched memory and a
// model that answers. An error says why there is none.
absl::StatusOr<WarmUpTimes> WarmUp(ServeLoop* loop, const ServedModel& model, Clock* clock);

}  // namespace latentd
