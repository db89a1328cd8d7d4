// latentctl: the command line client of latentd.

#include <cstdio>
#include <string>
#include <vector>

#include "base/version.h"
#include "server/latentctl/commands.h"

namespace latentd {
namespace {

constexpr struct {
  const char* name;
  absl::Status (*run)(Arguments args);
  const char* summary;
} kCommands[] = {
    {"generate", GenerateCommand,
     "stream the continuation of a prompt, or the answer to a question"},
    {"chat", ChatCommand, "talk with the model"},
    {"tokenize", TokenizeCommand, "text to token ids, or back"},
    {"model", ModelCommand, "facts about the model and its cache"},
    {"stats", StatsCommand, "what the server does now and has done"},
    {"bench", BenchCommand, "send many requests and measure latency and throughput"},
};

void PrintHelp(std::FILE* out) {
  std::fputs("usage: latentctl COMMAND [flags]\n\nThe command line client of latentd.\n\n", out);
  for (const auto& command : kCommands)
    std::fprintf(out, "  %-10s %s\n", command.name, command.summary);
  std::fputs(
      "\n`latentctl COMMAND --help` lists the flags of a command.\n\n"
      "example:\n  latentctl generate --chat \"Why is the sky blue?\"\n",
      out);
}

int Run(const std::vector<std::string>& args) {
  if (!args.empty() && args[0] == "--version") {
    std::puts(kVersion);
    return 0;
  }
  if (!args.empty() && (args[0] == "--help" || args[0] == "-h" || args[0] == "help")) {
    PrintHelp(stdout);
    return 0;
  }
  for (const auto& command : kCommands) {
    if (args.empty() || args[0] != command.name) continue;
    const absl::Status status = command.run(Arguments(args).subspan(1));
    if (status.ok()) return 0;
    std::fprintf(stderr, "latentctl %s: %s: %s\n", command.name,
                 absl::StatusCodeToString(status.code()).c_str(),
                 std::string(status.message()).c_str());
    return 1;
  }
  if (!args.empty())
    std::fprintf(stderr, "latentctl: there is no command \"%s\"\n\n", args[0].c_str());
  PrintHelp(stderr);
  return 2;
}

}  // namespace
}  // namespace latentd

int main(int argc, char** argv) {
  return latentd::Run(std::vector<std::string>(argv + 1, argv + argc));
}
