#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/latents_file.h"
#include "engine/engine.h"
#include "kernels/ops.h"

namespace latentd {

struct EngineOptions {
  int64_t cache_bytes = int64_t{1} << 30;  // of the pool
  int64_t num_blocks = 0;                  // > 0: this many blocks instead
  // > 0, on a device with memory of its own: the pool takes instead what this share of the memory
  // has left beside the weights and the largest step, which is computed once to measure it.
  double cache_fraction = 0;
  int num_sequences = 1;           // seats
  int max_rows = 512;              // of the largest step, for cache_fraction
  int max_context = 0;             // 0: the model's
  Codec full_codec = Codec::kF16;  // of the full cache: kF16, or kF32 for exactness tests
  bool random_cache = false;       // the pool begins with random numbers: RandomizePool
};

// An engine on this process's device: model, cache pool and ops. Owns all three; `checkpoint` and
// `latents` are borrowed for its lifetime. INVALID_ARGUMENT or RESOURCE_EXHAUSTED names the flag
// to change (--cache-bytes, --cache-fraction, --max-context) and both numbers, else as LoadWeights.
absl::StatusOr<std::unique_ptr<Engine>> CreateLocalEngine(const Checkpoint& checkpoint,
                                                          const Latents* latents,
                                                          std::unique_ptr<Ops> ops,
                                                          const EngineOptions& options);

}  // namespace latentd
