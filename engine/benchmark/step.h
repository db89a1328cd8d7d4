#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/statusor.h"
#include "engine/engine.h"

namespace latentd {

struct StepBenchOptions {
  int prompt = 512;  // tokens of the prefill that is timed, from an empty cache
  int context = 0;   // tokens already in each sequence's cache when decoding is timed
  int batch = 1;     // sequences that decode together
  int steps = 64;    // decode steps that are timed
  int repeats = 3;   // of each timing; medians are reported
  int chunk = 512;   // token rows of one prefill step
  // The cache already holds something for any context (EngineOptions::random_cache): no prefill
  // makes it.
  bool pretend = false;
};

struct StepBenchResult {
  double prefill_tokens_per_s = 0;
  double decode_tokens_per_s = 0;  // of the whole batch
  double tpot_ms = 0;              // mean time of a step, median over repeats
  double step_ms_p50 = 0;          // median over all timed steps
};

// Whether the engine's cache has the blocks for it.
bool Fits(const EngineInfo& info, const StepBenchOptions& options);

// Times whole steps of the engine, without a server. Token ids are pseudo-random; the cache at
// depth `context` comes from a real prefill, or is pretended. Each sequence has blocks of its own.
// INVALID_ARGUMENT with both numbers when the context or
// the pool is too small.
absl::StatusOr<StepBenchResult> BenchmarkSteps(Engine& engine, const StepBenchOptions& options,
                                               const std::function<void(double)>& progress);

}  // namespace latentd
