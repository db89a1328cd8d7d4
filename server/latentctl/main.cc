// latentctl: the command line client of latentd.

#include "base/commands.h"
#include "server/latentctl/commands.h"

namespace latentd {
namespace {

constexpr Command kCommands[] = {
    {"generate", GenerateCommand,
     "stream the continuation of a prompt, or the answer to a question"},
    {"chat", ChatCommand, "talk with the model"},
    {"tokenize", TokenizeCommand, "text to token ids, or back"},
    {"model", ModelCommand, "facts about the model and its cache"},
    {"stats", StatsCommand, "what the server does now and has done"},
    {"bench", BenchCommand, "send many requests and measure latency and throughput"},
};

}  // namespace
}  // namespace latentd

int main(int argc, char** argv) {
  return latentd::RunCommand({.name = "latentctl",
                              .summary = "The command line client of latentd.",
                              .example = "latentctl generate --chat \"Why is the sky blue?\"",
                              .commands = latentd::kCommands},
                             argc, argv);
}
