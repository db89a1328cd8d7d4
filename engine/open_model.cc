#include "engine/open_model.h"

#include <algorithm>
#include <string_view>
#include <thread>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "base/status_macros.h"
#include "engine/local_engine.h"
#include "engine/model/dummy_latents.h"
#include "engine/model/plain_latents.h"
#if LATENTD_CUDA
#include "kernels/cuda/cuda_ops.h"
#endif

namespace latentd {
namespace {

int ThreadsOf(const ModelOptions& options) {
  if (options.threads > 0) return options.threads;
  return std::max(1, static_cast<int>(std::thread::hardware_concurrency()));
}

absl::StatusOr<std::unique_ptr<Ops>> CreateGpuOps(int index,
                                                  [[maybe_unused]] bool batch_invariant) {
#if LATENTD_CUDA
  return CreateCudaOps(index, {.batch_invariant = batch_invariant});
#else
  return absl::UnimplementedError(absl::StrCat(
      "--device is \"cuda:", index,
      "\", and this program was built without CUDA; build it with cmake --preset cuda"));
#endif
}

absl::Status ValidateDummyLatents(const ModelOptions& options) {
  const std::string given = absl::StrCat("--dummy-latents is \"", options.dummy_latents, "\"");
  if (!options.dummy_weights) {
    return absl::InvalidArgumentError(absl::StrCat(given, ", which needs --dummy-weights"));
  }
  if (options.latents.empty() && options.cache_codec == "16") return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(given, ": give no --latents and no --cache-codec beside it"));
}

// Null for a full cache.
absl::StatusOr<std::unique_ptr<Latents>> LatentsOf(const ModelOptions& options,
                                                   const Checkpoint& checkpoint) {
  if (!options.latents.empty()) return OpenLatents(options.latents, checkpoint);
  if (!options.dummy_latents.empty()) {
    return MakeDummyLatents(checkpoint.config(), options.dummy_latents);
  }
  int bits = 16;
  if (!absl::SimpleAtoi(options.cache_codec, &bits) || bits == 16) return nullptr;
  return MakePlainLatents(checkpoint, bits, ThreadsOf(options));
}

}  // namespace

void AddModelFlags(CommandLine* flags, ModelOptions* options) {
  flags->Add("model", &options->model, "PATH", "Hugging Face folder or .gguf file");
  flags->Add("dummy-weights", &options->dummy_weights,
             "random weights, for measuring: --model is a folder or file with a config.json alone, "
             "--max-context may exceed its context");
  flags->Add(
      "latents", &options->latents, "FILE",
      "latents file of the model; without it the cache is uncompressed, or see --cache-codec");
  flags->Add("cache-codec", &options->cache_codec, "BITS",
             "without latents: bits of a cached number, 16, 8, 4, 3 or 2");
  flags->Add("dummy-latents", &options->dummy_latents, "K/V",
             "with --dummy-weights: random 4-bit latents with these percentages of the dims of K "
             "and V, 50/50");
  flags->Add("device", &options->device, "NAME", kDeviceHelp);
  flags->Add("batch-invariant", &options->batch_invariant,
             "on a GPU: the same bits for a sequence whatever runs beside it, as the CPU has them "
             "always, by slower attention");
  flags->Add("threads", &options->threads, "N", "threads of the CPU backend; 0: one per core",
             {.min = 0, .max = 1024});
  flags->AddBytes("cache-bytes", &options->cache_bytes,
                  absl::StrCat("memory of the cache: pages, and what each sequence keeps beside "
                               "them; default: ",
                               FormatBytes(static_cast<double>(kDefaultCacheBytes)),
                               options->fills_gpu ? ", on a GPU see --cache-fraction" : ""),
                  {.min = 1});
  flags->Add(
      "cache-fraction", &options->cache_fraction, "F",
      absl::StrCat(
          "on a GPU, in place of --cache-bytes: the share of its memory that "
          "weights, steps and cache take together",
          options->fills_gpu ? absl::StrCat("; default on a GPU: ", kDefaultCacheFraction) : ""),
      {.min = 0.01, .max = 1});
  flags->Add("max-context", &options->max_context, "N",
             "tokens of one sequence; 0: the model's own limit", {.min = 0});
}

absl::Status ValidateCache(const ModelOptions& options) {
  constexpr std::string_view kCodecs[] = {"16", "8", "4", "3", "2"};
  if (!absl::c_linear_search(kCodecs, options.cache_codec)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--cache-codec is \"", options.cache_codec, "\", allowed: 16, 8, 4, 3, 2"));
  }
  if (!options.latents.empty() && options.cache_codec != "16") {
    return absl::InvalidArgumentError(absl::StrCat(
        "--cache-codec is ", options.cache_codec, " and --latents is \"", options.latents,
        "\": a latents file has its own codecs, give one of the two"));
  }
  if (!options.dummy_latents.empty()) RETURN_IF_ERROR(ValidateDummyLatents(options));
  if (!options.cache_fraction.has_value()) return absl::OkStatus();
  if (options.cache_bytes > 0) {
    return absl::InvalidArgumentError(absl::StrCat("--cache-fraction is ", *options.cache_fraction,
                                                   " and --cache-bytes is ", options.cache_bytes,
                                                   ": give one of the two"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenCheckpoint(const ModelOptions& options) {
  if (options.model.empty())
    return absl::InvalidArgumentError("--model is missing: a Hugging Face folder or a .gguf file");
  if (!options.dummy_weights) return Checkpoint::Open(options.model);
  return Checkpoint::OpenDummy(options.model, {.min_context = options.max_context});
}

absl::StatusOr<std::unique_ptr<Ops>> CreateOps(const ModelOptions& options) {
  absl::string_view device = options.device;
  if (device == "cpu") return CreateCpuOps(ThreadsOf(options));
  if (device == "reference") return CreateReferenceOps();
  int gpu = 0;
  if (absl::ConsumePrefix(&device, "cuda:") && absl::SimpleAtoi(device, &gpu)) {
    return CreateGpuOps(gpu, options.batch_invariant);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--device is \"", options.device, "\", allowed: cpu, reference, cuda:0, cuda:1 ..."));
}

absl::StatusOr<std::unique_ptr<Engine>> CreateEngine(const ModelOptions& options,
                                                     const Checkpoint& checkpoint,
                                                     const Latents* latents, int num_sequences,
                                                     int max_rows) {
  ASSIGN_OR_RETURN(std::unique_ptr<Ops> ops, CreateOps(options));
  EngineOptions engine{.cache_bytes = options.cache_bytes,
                       .cache_fraction = options.cache_fraction.value_or(0),
                       .num_sequences = num_sequences,
                       .max_rows = max_rows,
                       .max_context = options.max_context,
                       .random_cache = options.random_cache};
  if (options.cache_bytes == 0 && !options.cache_fraction.has_value()) {
    engine.cache_bytes = kDefaultCacheBytes;
    ASSIGN_OR_RETURN(const std::optional<DeviceMemory> memory, ops->device().Memory());
    if (options.fills_gpu && memory.has_value()) engine.cache_fraction = kDefaultCacheFraction;
  }
  return CreateLocalEngine(checkpoint, latents, std::move(ops), engine);
}

absl::StatusOr<OpenedModel> OpenModel(const ModelOptions& options, int num_sequences,
                                      int max_rows) {
  RETURN_IF_ERROR(ValidateCache(options));
  OpenedModel opened;
  ASSIGN_OR_RETURN(opened.checkpoint, OpenCheckpoint(options));
  ASSIGN_OR_RETURN(opened.latents, LatentsOf(options, *opened.checkpoint));
  ASSIGN_OR_RETURN(opened.engine, CreateEngine(options, *opened.checkpoint, opened.latents.get(),
                                               num_sequences, max_rows));
  return opened;
}

}  // namespace latentd
