#include <iostream>

#include "absl/strings/str_format.h"
#include "base/command_line.h"
#include "base/progress.h"
#include "base/status_macros.h"
#include "engine/evaluation/cache_figures.h"
#include "engine/evaluation/divergence.h"
#include "engine/evaluation/eval_commands.h"
#include "engine/evaluation/exact_products.h"
#include "engine/evaluation/reference.h"
#include "engine/evaluation/test_text.h"

namespace latentd {
namespace {

struct Options {
  EvaluationModel model;
  std::string reference = "full";
  TestTextOptions text;
  bool json = false;
};

void Print(const Options& options, const EngineInfo& info, size_t windows,
           const DivergenceResult& result) {
  const int window = options.text.windows.window;
  if (options.json) {
    nlohmann::ordered_json json = {{"perplexity", result.perplexity},
                                   {"reference_perplexity", result.reference_perplexity},
                                   {"kl_mean", result.kl_mean},
                                   {"kl_standard_error", result.kl_standard_error},
                                   {"kl_p99", result.kl_p99},
                                   {"top1", result.top1},
                                   {"tokens", result.tokens},
                                   {"windows", windows},
                                   {"window", window}};
    AddCacheFigures(info, window, &json);
    std::cout << json << "\n";
    return;
  }
  absl::PrintF(
      "KL %.6f +- %.6f nats per token, 99 %% below %.4f; the likeliest token is the same "
      "for %.2f %%\n",
      result.kl_mean, result.kl_standard_error, result.kl_p99, 100 * result.top1);
  absl::PrintF("perplexity %.4f, the reference's %.4f, over %d tokens (%s)\n", result.perplexity,
               result.reference_perplexity, result.tokens, WindowsOf(windows, window));
  absl::PrintF("%s\n", CacheFigures(info, window));
}

absl::Status Divergence(const Options& options) {
  ASSIGN_OR_RETURN(const OpenedModel opened, OpenForEvaluation(options.model, 1));
  ASSIGN_OR_RETURN(const TestText text, OpenTestText(options.text, opened));
  ASSIGN_OR_RETURN(const OpenedModel reference, OpenReference(options.reference, options.model, 1));
  DivergenceResult result;
  {
    ProgressLine line("divergence");
    ASSIGN_OR_RETURN(result, MeasureDivergence(*reference.engine, *opened.engine, text.windows,
                                               options.model.model.threads, ShowOn(&line)));
  }
  Print(options, opened.engine->info(), text.windows.size(), result);
  return absl::OkStatus();
}

}  // namespace

absl::Status DivergenceCommand(Arguments args) {
  Options options;
  CommandLine flags(
      {.program = "latent-eval divergence",
       .summary = "Measures how far a cache's predictions are from the uncompressed cache's.",
       .example = "latent-eval divergence --model model.gguf --latents model.latents "
                  "--text wiki.test.raw --windows 16"});
  AddEvaluationModelFlags(&flags, &options.model);
  flags.Add("reference", &options.reference, "full|FILE|MODEL", kReferenceHelp);
  AddTestTextFlags(&flags, &options.text);
  flags.Add("json", &options.json, "print the result as one JSON object");
  flags.ParseOrExit(args);
  ExitIfWrong("latent-eval divergence", CheckModelFlags(options.model));
  ExitIfWrong("latent-eval divergence", CheckReference(options.reference, options.model));
  ExitIfWrong("latent-eval divergence", CheckTestTextFlags(options.text));
  return Divergence(options);
}

}  // namespace latentd
