#include <iostream>

#include "absl/strings/str_format.h"
#include "base/command_line.h"
#include "base/progress.h"
#include "base/status_macros.h"
#include "engine/evaluation/cache_figures.h"
#include "engine/evaluation/eval_commands.h"
#include "engine/evaluation/exact_products.h"
#include "engine/evaluation/perplexity.h"
#include "engine/evaluation/test_text.h"

namespace latentd {
namespace {

struct Options {
  EvaluationModel model;
  TestTextOptions text;
  bool json = false;
};

void Print(const Options& options, const EngineInfo& info, size_t windows,
           const PerplexityResult& result) {
  const int window = options.text.windows.window;
  if (options.json) {
    nlohmann::ordered_json json = {{"perplexity", result.perplexity},
                                   {"standard_error", result.standard_error},
                                   {"tokens", result.tokens},
                                   {"windows", windows},
                                   {"window", window}};
    AddCacheFigures(info, window, &json);
    std::cout << json << "\n";
    return;
  }
  absl::PrintF("perplexity %.4f +- %.4f over %d tokens (%s)\n", result.perplexity,
               result.standard_error, result.tokens, WindowsOf(windows, window));
  absl::PrintF("%s\n", CacheFigures(info, window));
}

absl::Status Perplexity(const Options& options) {
  ASSIGN_OR_RETURN(const OpenedModel opened, OpenForEvaluation(options.model, 1));
  ASSIGN_OR_RETURN(const TestText text, OpenTestText(options.text, opened));
  PerplexityResult result;
  {
    ProgressLine line("perplexity");
    ASSIGN_OR_RETURN(result, MeasurePerplexity(*opened.engine, text.windows,
                                               options.model.model.threads, ShowOn(&line)));
  }
  Print(options, opened.engine->info(), text.windows.size(), result);
  return absl::OkStatus();
}

}  // namespace

absl::Status PerplexityCommand(Arguments args) {
  Options options;
  CommandLine flags({.program = "latent-eval perplexity",
                     .summary = "Measures the perplexity of a text, window by window.",
                     .example = "latent-eval perplexity --model model.gguf --latents model.latents "
                                "--text wiki.test.raw --windows 16"});
  AddEvaluationModelFlags(&flags, &options.model);
  AddTestTextFlags(&flags, &options.text);
  flags.Add("json", &options.json, "print the result as one JSON object");
  flags.ParseOrExit(args);
  ExitIfWrong("latent-eval perplexity", CheckModelFlags(options.model));
  ExitIfWrong("latent-eval perplexity", CheckTestTextFlags(options.text));
  return Perplexity(options);
}

}  // namespace latentd
