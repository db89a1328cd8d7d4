// latent-eval: what a cache costs in quality, measured through the engine and its pages.

#include "base/commands.h"
#include "engine/evaluation/eval_commands.h"

namespace latentd {
namespace {

constexpr Command kCommands[] = {
    {"perplexity", PerplexityCommand, "of a text, in windows"},
    {"divergence", DivergenceCommand, "of a cache's predictions from the uncompressed cache's"},
    {"tasks", TasksCommand, "zero-shot: PIQA, HellaSwag, ARC, WinoGrande, OpenBookQA, LAMBADA"},
    {"retrieval", RetrievalCommand, "of a sentence hidden in a long text"},
    {"generate-compare", GenerateCompareCommand, "greedy texts with the uncompressed cache's"},
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
