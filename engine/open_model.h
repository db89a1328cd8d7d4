#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "base/command_line.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/latents_file.h"
#include "engine/engine.h"
#include "kernels/ops.h"

namespace latentd {

// The flags that every program which runs a model shares.
struct ModelOptions {
  std::string model;                     // --model: Hugging Face folder or .gguf file
  std::string latents;                   // --latents: empty for a cache without a file
  std::string cache_codec = "16";        // --cache-codec, without latents: 16, 8, 4, 3 or 2
  bool dummy_weights = false;            // --dummy-weights: random ones, whatever `model` holds
  std::string dummy_latents;             // --dummy-latents: as MakeDummyLatents; empty: none
  std::string device = "cpu";            // --device: cpu, reference or cuda:N
  bool batch_invariant = false;          // --batch-invariant
  int threads = 0;                       // --threads; 0: one per core
  int64_t cache_bytes = 0;               // --cache-bytes; 0: not given
  std::optional<double> cache_fraction;  // --cache-fraction
  int max_context = 0;                   // --max-context; 0: the model's

  // What the program chooses, not its user.
  bool fills_gpu = false;     // the default on a GPU is kDefaultCacheFraction
  bool random_cache = false;  // EngineOptions::random_cache
};

// Where neither --cache-bytes nor --cache-fraction is given.
inline constexpr int64_t kDefaultCacheBytes = int64_t{2} << 30;
inline constexpr double kDefaultCacheFraction = 0.9;

inline constexpr char kDeviceHelp[] =
    "where to compute: cpu, cuda:N (the GPU N, of a build with the preset cuda), reference (slow)";
void AddModelFlags(CommandLine* flags, ModelOptions* options);

// A model ready to compute. Members are destroyed from the last to the first: the engine borrows
// the others.
struct OpenedModel {
  std::unique_ptr<Checkpoint> checkpoint;
  std::unique_ptr<Latents> latents;  // null for a full cache
  std::unique_ptr<Engine> engine;
};

// INVALID_ARGUMENT names the flag to change.
absl::Status ValidateCache(const ModelOptions& options);  // before a model is opened
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenCheckpoint(const ModelOptions& options);
absl::StatusOr<std::unique_ptr<Ops>> CreateOps(const ModelOptions& options);
// An engine of the model. `num_sequences` can be at work at once: that many seats beside the
// blocks; a step has `max_rows` rows at most.
absl::StatusOr<std::unique_ptr<Engine>> CreateEngine(const ModelOptions& options,
                                                     const Checkpoint& checkpoint,
                                                     const Latents* latents, int num_sequences,
                                                     int max_rows = 512);
absl::StatusOr<OpenedModel> OpenModel(const ModelOptions& options, int num_sequences,
                                      int max_rows = 512);

}  // namespace latentd
