// latent-eval: what a cache costs in quality, measured through the engine and its pages.

#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/command_line.h"
#include "base/commands.h"
#include "base/mapped_file.h"
#include "base/progress.h"
#include "base/status_macros.h"
#include "engine/evaluation/perplexity.h"
#include "engine/open_model.h"
#include "engine/text/tokenizer.h"
#include "nlohmann/json.hpp"

namespace latentd {
namespace {

struct Options {
  ModelOptions model;
  std::string text;
  std::string count = "all";
  PerplexityOptions perplexity;
  bool json = false;
};

void Print(const Options& options, const EngineInfo& info, const PerplexityResult& result) {
  const double ratio = info.full_bytes_per_token / info.bytes_per_token;
  if (options.json) {
    std::cout << nlohmann::ordered_json({{"perplexity", result.perplexity},
                                         {"standard_error", result.standard_error},
                                         {"tokens", result.tokens},
                                         {"windows", result.windows},
                                         {"window", options.perplexity.window},
                                         {"cache", info.cache_name},
                                         {"bytes_per_token", info.bytes_per_token},
                                         {"full_bytes_per_token", info.full_bytes_per_token},
                                         {"ratio", ratio}})
              << "\n";
    return;
  }
  absl::PrintF("perplexity %.4f +- %.4f over %d tokens (%d windows of %d)\n", result.perplexity,
               result.standard_error, result.tokens, result.windows, options.perplexity.window);
  absl::PrintF("cache: %s, %.1f bytes per token (full 16-bit %.0f, ratio %.2f)\n", info.cache_name,
               info.bytes_per_token, info.full_bytes_per_token, ratio);
}

absl::Status Perplexity(Options options) {
  if (options.text.empty())
    return absl::InvalidArgumentError("--text is missing: the file to measure on");
  if (options.count != "all" && options.count != "second-half") {
    return absl::InvalidArgumentError(
        absl::StrCat("--count is \"", options.count, "\", allowed: all, second-half"));
  }
  if (options.perplexity.windows > 0 && options.perplexity.first_windows > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--windows is ", options.perplexity.windows, " and --first-windows is ",
                     options.perplexity.first_windows, ": give one of the two"));
  }
  options.perplexity.second_half = options.count == "second-half";
  ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> text, MappedFile::Open(options.text));
  ASSIGN_OR_RETURN(const OpenedModel opened, OpenModel(options.model, 1));
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                   Tokenizer::Create(opened.checkpoint->tokenizer()));
  ASSIGN_OR_RETURN(
      const std::vector<int32_t> ids,
      tokenizer->Encode({reinterpret_cast<const char*>(text->bytes().data()), text->bytes().size()},
                        false, false));
  PerplexityResult result;
  {
    ProgressLine line("perplexity");
    ASSIGN_OR_RETURN(result, MeasurePerplexity(*opened.engine, ids, options.perplexity,
                                               [&](double share) { line.Show(share); }));
  }
  Print(options, opened.engine->info(), result);
  return absl::OkStatus();
}

absl::Status PerplexityCommand(Arguments args) {
  Options options;
  CommandLine flags({.program = "latent-eval perplexity",
                     .summary = "Measures the perplexity of a text, window by window.",
                     .example = "latent-eval perplexity --model model.gguf --latents model.latents "
                                "--text wiki.test.raw --windows 16"});
  AddModelFlags(&flags, &options.model);
  flags.Add("text", &options.text, "FILE", "UTF-8 text to measure on");
  flags.Add("window", &options.perplexity.window, "N", "tokens of one window", {.min = 4});
  flags.Add("windows", &options.perplexity.windows, "N", "windows, evenly spaced; 0: all that fit",
            {.min = 0});
  flags.Add("first-windows", &options.perplexity.first_windows, "N", "the first N windows instead",
            {.min = 0});
  flags.Add("count", &options.count, "all|second-half",
            "which tokens of each window count; llama-perplexity counts the second half");
  flags.Add("json", &options.json, "print the result as one JSON object");
  flags.ParseOrExit(args);
  return Perplexity(std::move(options));
}

constexpr Command kCommands[] = {{"perplexity", PerplexityCommand, "of a text, in windows"}};

}  // namespace
}  // namespace latentd

int main(int argc, char** argv) {
  return latentd::RunCommand(
      {.name = "latent-eval",
       .summary = "Measures what a cache costs in quality, through the engine and its pages.",
       .example = "latent-eval perplexity --model model.gguf --latents model.latents --text "
                  "wiki.test.raw --windows 16",
       .commands = latentd::kCommands},
      argc, argv);
}
