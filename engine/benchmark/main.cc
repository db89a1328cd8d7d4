// latent-bench: times the engine without a server.

#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/command_line.h"
#include "base/commands.h"
#include "base/progress.h"
#include "base/status_macros.h"
#include "engine/benchmark/kernels.h"
#include "engine/benchmark/step.h"
#include "engine/open_model.h"
#include "nlohmann/json.hpp"

namespace latentd {
namespace {

struct Options {
  ModelOptions model;
  StepBenchOptions step;
  bool json = false;
};

absl::Status Step(const Options& options) {
  ASSIGN_OR_RETURN(const OpenedModel opened, OpenModel(options.model, options.step.batch));
  const EngineInfo& info = opened.engine->info();
  StepBenchResult result;
  {
    ProgressLine line("timing steps");
    ASSIGN_OR_RETURN(result, BenchmarkSteps(*opened.engine, options.step,
                                            [&](double share) { line.Show(share); }));
  }
  if (options.json) {
    std::cout << nlohmann::ordered_json({{"prefill_tokens_per_s", result.prefill_tokens_per_s},
                                         {"decode_tokens_per_s", result.decode_tokens_per_s},
                                         {"tpot_ms", result.tpot_ms},
                                         {"step_ms_p50", result.step_ms_p50},
                                         {"prompt", options.step.prompt},
                                         {"context", options.step.context},
                                         {"batch", options.step.batch},
                                         {"cache", info.cache_name},
                                         {"bytes_per_token", info.bytes_per_token},
                                         {"full_bytes_per_token", info.full_bytes_per_token},
                                         {"device", info.device}})
              << "\n";
    return absl::OkStatus();
  }
  absl::PrintF("%s, cache %s (%.1f bytes per token), %s\n", info.model_name, info.cache_name,
               info.bytes_per_token, info.device);
  if (options.step.prompt > 0) {
    absl::PrintF("prefill of %d tokens: %.1f tokens/s\n", options.step.prompt,
                 result.prefill_tokens_per_s);
  }
  if (options.step.steps > 0) {
    absl::PrintF("decode at context %d, batch %d: %.1f tokens/s, %.2f ms per step (median %.2f)\n",
                 options.step.context, options.step.batch, result.decode_tokens_per_s,
                 result.tpot_ms, result.step_ms_p50);
  }
  return absl::OkStatus();
}

absl::Status StepCommand(Arguments args) {
  Options options;
  CommandLine flags({.program = "latent-bench step",
                     .summary = "Times the prefill and decode steps of a model, without a server.",
                     .example = "latent-bench step --model model.gguf --latents model.latents "
                                "--context 4096 --steps 64"});
  AddModelFlags(&flags, &options.model);
  flags.Add("prompt", &options.step.prompt, "N", "tokens of the timed prefill; 0: none",
            {.min = 0});
  flags.Add("context", &options.step.context, "N",
            "tokens in the cache before the timed decode steps", {.min = 0});
  flags.Add("batch", &options.step.batch, "N", "sequences that decode together", {.min = 1});
  flags.Add("steps", &options.step.steps, "N", "decode steps; 0: none", {.min = 0});
  flags.Add("repeats", &options.step.repeats, "N", "timings, of which the median is shown",
            {.min = 1});
  flags.Add("json", &options.json, "print the result as one JSON object");
  flags.ParseOrExit(args);
  return Step(options);
}

struct KernelOptions {
  ModelOptions model;
  AttentionBenchOptions attention;
  bool json = false;
};

absl::Status Kernels(const KernelOptions& options) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Ops> ops, CreateOps(options.model));
  std::vector<AttentionBenchRow> rows;
  {
    ProgressLine line("timing attention");
    ASSIGN_OR_RETURN(
        rows, BenchmarkAttention(*ops, options.attention, [&](double share) { line.Show(share); }));
  }
  const AttentionBenchOptions& shape = options.attention;
  if (!options.json) {
    absl::PrintF("%s: %d query and %d KV heads of %d, groups of %d, %d tokens, batch %d\n",
                 ops->name(), shape.heads, shape.kv_heads, shape.head_dim, shape.group,
                 shape.context, shape.batch);
    absl::PrintF("%-30s %10s %14s %9s %13s\n", "cache", "us", "bytes to read", "GB/s",
                 "ratio to full");
  }
  for (const AttentionBenchRow& row : rows) {
    if (!options.json) {
      absl::PrintF("%-30s %10.1f %14d %9.0f %13.2f\n", row.cache, row.us, row.bytes, row.gb_per_s,
                   row.ratio_to_full);
      continue;
    }
    std::cout << nlohmann::ordered_json({{"device", ops->name()},
                                         {"cache", row.cache},
                                         {"heads", shape.heads},
                                         {"kv_heads", shape.kv_heads},
                                         {"head_dim", shape.head_dim},
                                         {"group", shape.group},
                                         {"context", shape.context},
                                         {"batch", shape.batch},
                                         {"us", row.us},
                                         {"bytes", row.bytes},
                                         {"gb_per_s", row.gb_per_s},
                                         {"ratio_to_full", row.ratio_to_full}})
              << "\n";
  }
  return absl::OkStatus();
}

absl::Status KernelsCommand(Arguments args) {
  KernelOptions options;
  CommandLine flags(
      {.program = "latent-bench kernels",
       .summary = "Times one layer's decode attention with caches of each kind, random numbers in "
                  "them.",
       .example = "latent-bench kernels --heads 32 --kv-heads 8 --context 16384"});
  flags.Add("device", &options.model.device, "NAME", kDeviceHelp);
  flags.Add("threads", &options.model.threads, "N", "threads of the CPU backend; 0: one per core",
            {.min = 0, .max = 1024});
  flags.Add("heads", &options.attention.heads, "N", "query heads", {.min = 1});
  flags.Add("kv-heads", &options.attention.kv_heads, "N", "KV heads", {.min = 1});
  flags.Add("head-dim", &options.attention.head_dim, "N", "dims of a head", {.min = 1});
  flags.Add("group", &options.attention.group, "N", "KV heads that share a latent", {.min = 1});
  flags.Add("context", &options.attention.context, "N", "tokens of each sequence", {.min = 1});
  flags.Add("batch", &options.attention.batch, "N", "sequences that decode together", {.min = 1});
  flags.Add("repeats", &options.attention.repeats, "N", "timings, of which the median is shown",
            {.min = 1});
  flags.Add("json", &options.json, "print each result as one JSON object");
  flags.ParseOrExit(args);
  return Kernels(options);
}

constexpr Command kCommands[] = {
    {"step", StepCommand, "prefill and decode steps of a model"},
    {"kernels", KernelsCommand, "attention of one layer, with caches of each kind"}};

}  // namespace
}  // namespace latentd

int main(int argc, char** argv) {
  return latentd::RunCommand(
      {.name = "latent-bench",
       .summary = "Times the engine without a server.",
       .example = "latent-bench step --model model.gguf --latents model.latents --context 4096",
       .commands = latentd::kCommands},
      argc, argv);
}
