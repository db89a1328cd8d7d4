#include <algorithm>
#include <iostream>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/command_line.h"
#include "base/progress.h"
#include "base/status_macros.h"
#include "engine/benchmark/bench_commands.h"
#include "engine/benchmark/step.h"
#include "engine/open_model.h"
#include "nlohmann/json.hpp"

namespace latentd {
namespace {

struct Options {
  ModelOptions model{.fills_gpu = true};
  StepBenchOptions step;
  std::vector<int> contexts = {0}, batches = {1};
  bool all_caches = false;
  bool json = false;

  int longest() const {
    const int context = *std::max_element(contexts.begin(), contexts.end());
    return std::max(step.prompt, context + step.steps);
  }
};

struct Cache {
  const char* name;
  const char* codec;          // --cache-codec
  const char* dummy_latents;  // --dummy-latents
};
constexpr Cache kCaches[] = {{"full, f16", "16", ""},
                             {"full rank, int8", "8", ""},
                             {"full rank, int4", "4", ""},
                             {"latents 50/50, int4", "16", "50/50"},
                             {"latents 25/75, int4", "16", "25/75"}};

// One context and batch with one cache.
struct Cell {
  StepBenchOptions options;
  std::optional<StepBenchResult> result;  // nullopt: it does not fit
};

// All cells of one cache.
struct Row {
  std::string name;
  EngineInfo info;
  std::vector<Cell> cells;  // batches[0] with all contexts, batches[1] ...
};

int64_t TokensThatFit(const EngineInfo& info) { return info.num_blocks * kBlockTokens; }

void PrintJson(const Row& row, const Cell& cell) {
  const EngineInfo& info = row.info;
  nlohmann::ordered_json json;
  if (cell.result.has_value()) {
    json = {{"prefill_tokens_per_s", cell.result->prefill_tokens_per_s},
            {"decode_tokens_per_s", cell.result->decode_tokens_per_s},
            {"tpot_ms", cell.result->tpot_ms},
            {"step_ms_p50", cell.result->step_ms_p50}};
  }
  json["fits"] = cell.result.has_value();
  json["prompt"] = cell.options.prompt;
  json["context"] = cell.options.context;
  json["batch"] = cell.options.batch;
  json["model"] = info.model_name;
  json["cache"] = info.cache_name;
  json["bytes_per_token"] = info.bytes_per_token;
  json["full_bytes_per_token"] = info.full_bytes_per_token;
  json["tokens_that_fit"] = TokensThatFit(info);
  json["bytes_per_sequence"] = info.bytes_per_sequence;
  json["weight_bytes"] = info.weight_bytes;
  json["factor_bytes"] = info.factor_bytes;
  json["pool_bytes"] = info.pool_bytes;
  json["device"] = info.device;
  std::cout << json << std::endl;  // a long run shows what it has
}

void PrintResult(const Row& row, const Cell& cell) {
  const EngineInfo& info = row.info;
  absl::PrintF("%s, cache %s (%.1f bytes per token), %s\n", info.model_name, info.cache_name,
               info.bytes_per_token, info.device);
  if (!cell.result.has_value()) return;
  if (cell.options.prompt > 0) {
    absl::PrintF("prefill of %d tokens: %.1f tokens/s\n", cell.options.prompt,
                 cell.result->prefill_tokens_per_s);
  }
  if (cell.options.steps > 0) {
    absl::PrintF("decode at context %d, batch %d: %.1f tokens/s, %.2f ms per step (median %.2f)\n",
                 cell.options.context, cell.options.batch, cell.result->decode_tokens_per_s,
                 cell.result->tpot_ms, cell.result->step_ms_p50);
  }
}

// Times as a table of contexts and batches, then what each cache takes.
void PrintTables(const Options& options, const std::vector<Row>& rows) {
  absl::PrintF("%s on %s: ms per decode step, median; batch x context; \"-\": does not fit\n",
               rows[0].info.model_name, rows[0].info.device);
  if (!options.all_caches) absl::PrintF("cache: %s\n", rows[0].info.cache_name);
  absl::PrintF("%-20s", "cache");
  for (const int batch : options.batches) {
    for (const int context : options.contexts) {
      absl::PrintF(" %10s", absl::StrCat(batch, " x ", context));
    }
  }
  for (const Row& row : rows) {
    absl::PrintF("\n%-20s", row.name);
    for (const Cell& cell : row.cells) {
      absl::PrintF(" %10s", cell.result.has_value()
                                ? absl::StrFormat("%.2f", cell.result->step_ms_p50)
                                : "-");
    }
  }
  absl::PrintF("\n\n%-20s %15s %15s %15s %10s %10s %10s\n", "cache", "bytes/token",
               "bytes/sequence", "tokens that fit", "in", "weights", "factors");
  for (const Row& row : rows) {
    const EngineInfo& info = row.info;
    const auto size = [](int64_t bytes) { return FormatBytes(static_cast<double>(bytes)); };
    absl::PrintF("%-20s %15.1f %15.0f %15d %10s %10s %10s\n", row.name, info.bytes_per_token,
                 info.bytes_per_sequence, TokensThatFit(info), size(info.pool_bytes),
                 size(info.weight_bytes), size(info.factor_bytes));
  }
}

absl::StatusOr<Row> Measure(const Options& options, const ModelOptions& model, std::string name,
                            const std::function<void(double)>& progress) {
  const int most = *std::max_element(options.batches.begin(), options.batches.end());
  const bool prefills = options.step.prompt > 0 || !options.step.pretend;
  ASSIGN_OR_RETURN(const OpenedModel opened,
                   OpenModel(model, most, prefills ? std::max(options.step.chunk, most) : most));
  Row row{.name = std::move(name), .info = opened.engine->info()};
  const bool one = options.batches.size() * options.contexts.size() == 1;
  const auto count = static_cast<double>(options.batches.size() * options.contexts.size());
  for (const int batch : options.batches) {
    for (const int context : options.contexts) {
      Cell cell{.options = options.step};
      cell.options.batch = batch;
      cell.options.context = context;
      const auto done = static_cast<double>(row.cells.size());
      if (one || Fits(row.info, cell.options)) {
        ASSIGN_OR_RETURN(cell.result,
                         BenchmarkSteps(*opened.engine, cell.options,
                                        [&](double share) { progress((done + share) / count); }));
      }
      if (options.json) PrintJson(row, cell);
      row.cells.push_back(cell);
    }
  }
  return row;
}

absl::Status Step(const Options& options) {
  ModelOptions model = options.model;
  std::vector<Row> rows;
  {
    ProgressLine line("timing steps");
    const size_t caches = options.all_caches ? std::size(kCaches) : 1;
    for (size_t i = 0; i < caches; ++i) {
      if (options.all_caches) {
        model.cache_codec = kCaches[i].codec;
        model.dummy_latents = kCaches[i].dummy_latents;
      }
      const char* name = options.all_caches ? kCaches[i].name : "this one";
      ASSIGN_OR_RETURN(Row row, Measure(options, model, name, [&](double share) {
                         line.Show((static_cast<double>(i) + share) / static_cast<double>(caches));
                       }));
      rows.push_back(std::move(row));
    }
  }
  if (options.json) return absl::OkStatus();
  if (rows.size() == 1 && rows[0].cells.size() == 1) {
    PrintResult(rows[0], rows[0].cells[0]);
  } else {
    PrintTables(options, rows);
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status StepCommand(Arguments args) {
  Options options;
  CommandLine flags(
      {.program = "latent-bench step",
       .summary = "Times the prefill and decode steps of a model, without a server.",
       .example = "latent-bench step --model tools/shapes/llama-3.1-8b.json --dummy-weights "
                  "--all-caches --context 4096,65536 --batch 1,8 --prompt 0 --device cuda:0"});
  AddModelFlags(&flags, &options.model);
  flags.Add("all-caches", &options.all_caches,
            "with --dummy-weights: the full cache, 8 and 4 bits, and latents of 4 bits with 50/50 "
            "and 25/75 percent of the dims, one after the other");
  flags.Add("prompt", &options.step.prompt, "N", "tokens of the timed prefill; 0: none",
            {.min = 0});
  flags.Add("context", &options.contexts, "N,...",
            "tokens in the cache before the timed decode steps; random numbers with "
            "--dummy-weights, else of a real prefill",
            {.min = 0});
  flags.Add("batch", &options.batches, "N,...", "sequences that decode together", {.min = 1});
  flags.Add("steps", &options.step.steps, "N", "decode steps; 0: none", {.min = 0});
  flags.Add("repeats", &options.step.repeats, "N", "timings, of which the median is shown",
            {.min = 1});
  flags.Add("json", &options.json, "print each result as one JSON object");
  flags.ParseOrExit(args);
  if (options.model.dummy_weights) {
    options.step.pretend = options.model.random_cache = true;
    if (options.model.max_context == 0) options.model.max_context = options.longest();
  }
  if (options.all_caches) {
    if (!options.model.dummy_weights) {
      return absl::InvalidArgumentError("--all-caches needs --dummy-weights");
    }
    for (const char* flag : {"latents", "cache-codec", "dummy-latents"}) {
      if (!flags.IsSet(flag)) continue;
      return absl::InvalidArgumentError(
          absl::StrCat("--all-caches and --", flag, ": give one of the two"));
    }
  }
  return Step(options);
}

}  // namespace latentd
