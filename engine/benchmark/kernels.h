#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/ops.h"

namespace latentd {

struct AttentionBenchOptions {
  int heads = 32;  // query heads
  int kv_heads = 32;
  int head_dim = 128;
  int group = 4;        // KV heads that share a latent
  int context = 65536;  // tokens of each sequence
  int batch = 1;        // sequences that decode together, one row each
  int repeats = 9;      // timings of at least 20 ms, of which the median is reported
};

// Decode attention of one layer with one kind of cache.
struct AttentionBenchRow {
  std::string cache;         // "full, f16", "latents 50/50, int4", ...
  double us = 0;             // of the whole batch
  int64_t bytes = 0;         // of the visible blocks, which must be read
  double gb_per_s = 0;       // bytes / us
  double ratio_to_full = 0;  // how many times faster than "full, f16"
};

// Times Ops::Attention with random caches and factors: full caches, latents with K and V of half
// the dims each, with a quarter and three quarters, and in the segments of a compressed model,
// rebuilt, and absorbed. Several copies of a
// small cache are read in turn, so that none stays in a processor's caches. RESOURCE_EXHAUSTED when
// a cache does not fit, UNIMPLEMENTED when the backend has no kernel for the shape.
absl::StatusOr<std::vector<AttentionBenchRow>> BenchmarkAttention(
    Ops& ops, const AttentionBenchOptions& options, const std::function<void(double)>& progress);

}  // namespace latentd
