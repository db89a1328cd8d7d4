#pragma once

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "engine/engine.h"

namespace latentd {

// What a warm-up generation took.
struct WarmUpTimes {
  absl::Duration first_token;
  absl::Duration total;
};

// Generates a few tokens, so that whoever comes first finds touched memory and a model that
// answers. Before the serve loop has the engine, so that no counter knows of it. An error says why
// there is no answer.
absl::StatusOr<WarmUpTimes> WarmUp(Engine* engine, Clock* clock);

}  // namespace latentd
