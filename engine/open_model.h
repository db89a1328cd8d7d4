#pragma once

#include <cstdint>
#include <memory>
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
  std::string model;                       // --model: Hugging Face folder or .gguf file
  std::string latents;                     // --latents: empty for a cache without a file
  std::string cache_codec = "16";          // --cache-codec, without latents: 16, 8, 4, 3 or 2
  std::string device = "cpu";              // --device: cpu, reference or cuda:N
  int threads = 0;                         // --threads; 0: one per core
  int64_t cache_bytes = int64_t{2} << 30;  // --cache-bytes
  int max_context = 0;                     // --max-context; 0: the model's
};

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
absl::Status ValidateCache(const ModelOptions& options);  // --cache-codec, before a model is opened
absl::StatusOr<std::unique_ptr<Checkpoint>> OpenCheckpoint(const ModelOptions& options);
absl::StatusOr<std::unique_ptr<Ops>> CreateOps(const ModelOptions& options);
// `num_sequences` can be at work at once: that many seats beside the blocks.
absl::StatusOr<OpenedModel> OpenModel(const ModelOptions& options, int num_sequences);

}  // namespace latentd
