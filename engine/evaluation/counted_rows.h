#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "engine/engine.h"
#include "engine/evaluation/windows.h"

namespace latentd {

// Tokens of the windows that are predicted and counted.
int64_t CountedRows(absl::Span<const TextWindow> windows);

// What the engines predict of one counted token: logits[e] of engine e [vocab]. `index` is the
// token's number in [0, CountedRows), `next` the token that came.
using CountedRowBody = std::function<void(
    int64_t index, absl::Span<const absl::Span<const float>> logits, int32_t next)>;

// Takes the windows through the engines (at least one, of one vocabulary), all by the same steps,
// and calls `body` once for every counted token, on `threads` threads (0: one per core) at a time.
// Some tens of rows of logits are all that is held. `progress` is called after every step.
// INVALID_ARGUMENT as CheckWindows. The engines' caches are overwritten from block 0 on.
absl::Status ForCountedRows(absl::Span<Engine* const> engines, absl::Span<const TextWindow> windows,
                            int threads, const CountedRowBody& body,
                            const EvaluationProgress& progress);

}  // namespace latentd
