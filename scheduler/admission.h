#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "engine/engine.h"
#include "scheduler/request.h"

namespace latentd {

// Whether the engine can serve the request at all, alone in its pool: INVALID_ARGUMENT names what
// is wrong and both numbers. Under a sliding window a long request needs no more blocks at once
// than one token sees (MostBlocksFor). Looks at the request only, so it may run on any thread.
absl::Status CheckRequest(const Request& request, const EngineInfo& info);

// The most max_new_tokens that CheckRequest accepts after a prompt of `prompt_tokens`; 0 if none.
int MostNewTokens(const EngineInfo& info, int64_t prompt_tokens);

}  // namespace latentd
