// latent-eval: what a cache costs in quality, measured through the engine and its pages.

#include "base/commands.h"
#include "engine/evaluation/eval_commands.h"

namespace latentd {
namespace {

constexpr Command kCommands[] = {
    {"perplexity", PerplexityCommand, "measures a text's perplexity, in windows"},
    {"divergence", DivergenceCommand,
     "measures how far a cache's predictions are from the uncompressed cache's"},
    {"tasks", TasksCommand,
     "asks zero-shot questions: PIQA, HellaSwag, ARC, WinoGrande, OpenBookQA, LAMBADA"},
    {"retrieval", RetrievalCommand, "asks for a sentence hidden in a long text"},
    {"generate-compare", GenerateCompareCommand,
     "compares greedy texts with the uncompressed cache's"},
};

}  // namespace
}  // namespace latentd

int main(int argc, char** argv) {
  return latentd::RunCommand(
      {.name = "latent-eval",
       .summary = "Measures what a cache costs in quality, through the engine and its pages.",
       .example = "latent-eval divergence --model model.gguf --latents model.latents --text "
                  "wiki.test.raw --windows 16",
       .commands = latentd::kCommands},
      argc, argv);
}
