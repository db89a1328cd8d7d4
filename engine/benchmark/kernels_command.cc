#include <iostream>

#include "absl/strings/str_format.h"
#include "base/command_line.h"
#include "base/progress.h"
#include "base/status_macros.h"
#include "engine/benchmark/bench_commands.h"
#include "engine/benchmark/kernels.h"
#include "engine/open_model.h"
#include "nlohmann/json.hpp"

namespace latentd {
namespace {

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

}  // namespace

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

}  // namespace latentd
