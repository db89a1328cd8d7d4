// latent-bench: times the engine without a server.

#include "base/commands.h"
#include "engine/benchmark/bench_commands.h"

namespace latentd {
namespace {

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
