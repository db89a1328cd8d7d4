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

absl::StatusOr<std::unique_ptr<Ops>> CreateGpuOps(int index) {
#if LATENTD_CUDA
  return CreateCudaOps(index);
#else
  return absl::UnimplementedError(absl::StrCat(
      "--device is \"cuda:", index,
      "\", and this program was built without CUDA; build it with cmake --preset cuda"));
#endif
}

}  // namespace

void AddModelFlags(CommandLine* flags, ModelOptions* options) {
  flags->Add("model", &options->model, "PATH", "Hugging Face folder or .gguf file");
  flags->Add(
      "latents", &options->latents, "FILE",
      "latents file of the model; without it the cache is uncompressed, or see --cache-codec");
  flags->Add("cache-codec", &options->cache_codec, "BITS",
             "without latents: bits of a cached number, 16, 8, 4, 3 or 2");
  flags->Add("device", &options->device, "NAME", kDeviceHelp);
  flags->Add("threads", &options->threads, "N", "threads of the CPU backend; 0: one per core",
             {.min = 0, .max = 1024});
  flags->AddBytes("cache-bytes", &options->cache_bytes,
                  "memory of the cache: pages, and what each sequence keeps beside them",
                  {.min = 1});
  flags->Add("max-context", &options->max_context, "N",
             "tokens of one sequence; 0: the model's own limit", {.min = 0});
}

absl::Status ValidateCache(const ModelOptions& options) {
  constexpr std::string_view kCodecs[] = {"16", "8", "4", "3", "2"};
  if (absl::c_linear_search(kCodecs, options.cache_codec)) {
    if (options.latents.empty() || options.cache_codec == "16") return absl::OkStatus();
    return absl::InvalidArgumentError(absl::StrCat(
        "--cache-codec is ", options.cache_codec, " and --latents is \"", options.latents,
        "\": a latents file has its own codecs, give one of the two"));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--cache-codec is \"", options.cache_codec, "\", allowed: 16, 8, 4, 3, 2"));
}

absl::StatusOr<std::unique_ptr<Checkpoint>> OpenCheckpoint(const ModelOptions& options) {
  if (options.model.empty())
    return absl::InvalidArgumentError("--model is missing: a Hugging Face folder or a .gguf file");
  return Checkpoint::Open(options.model);
}

absl::StatusOr<std::unique_ptr<Ops>> CreateOps(const ModelOptions& options) {
  absl::string_view device = options.device;
  if (device == "cpu") return CreateCpuOps(ThreadsOf(options));
  if (device == "reference") return CreateReferenceOps();
  int gpu = 0;
  if (absl::ConsumePrefix(&device, "cuda:") && absl::SimpleAtoi(device, &gpu)) {
    return CreateGpuOps(gpu);
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "--device is \"", options.device, "\", allowed: cpu, reference, cuda:0, cuda:1 ..."));
}

absl::StatusOr<OpenedModel> OpenModel(const ModelOptions& options, int num_sequences) {
  RETURN_IF_ERROR(ValidateCache(options));
  OpenedModel opened;
  ASSIGN_OR_RETURN(opened.checkpoint, OpenCheckpoint(options));
  int bits = 16;
  if (!options.latents.empty()) {
    ASSIGN_OR_RETURN(opened.latents, OpenLatents(options.latents, *opened.checkpoint));
  } else if (absl::SimpleAtoi(options.cache_codec, &bits) && bits != 16) {
    ASSIGN_OR_RETURN(opened.latents,
                     MakePlainLatents(*opened.checkpoint, bits, ThreadsOf(options)));
  }
  ASSIGN_OR_RETURN(std::unique_ptr<Ops> ops, CreateOps(options));
  ASSIGN_OR_RETURN(opened.engine,
                   CreateLocalEngine(*opened.checkpoint, opened.latents.get(), std::move(ops),
                                     {.cache_bytes = options.cache_bytes,
                                      .num_sequences = num_sequences,
                                      .max_context = options.max_context}));
  return opened;
}

}  // namespace latentd
