#include "base/commands.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <iostream>
#include <vector>

#include "absl/strings/str_format.h"
#include "base/version.h"

namespace latentd {
namespace {

std::string HelpOf(const CommandProgram& program) {
  std::string help =
      absl::StrFormat("usage: %s COMMAND [flags]\n\n%s\n\n", program.name, program.summary);
  for (const Command& command : program.commands) {
    absl::StrAppendFormat(&help, "  %-10s %s\n", command.name, command.summary);
  }
  absl::StrAppendFormat(&help,
                        "\n`%s COMMAND --help` lists the flags of a command.\n\nexample:\n  %s\n",
                        program.name, program.example);
  return help;
}

// Output that found no place must not look like success.
absl::Status WriteOutput() {
  errno = 0;
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good()) {
    return absl::OkStatus();
  }
  constexpr char kFault[] = "the output could not be written";
  return errno == 0 ? absl::DataLossError(kFault) : absl::ErrnoToStatus(errno, kFault);
}

}  // namespace

int RunCommand(const CommandProgram& program, int argc, char** argv) {
  const std::vector<std::string> args(argv + 1, argv + argc);
  if (args.empty()) {
    std::fputs(HelpOf(program).c_str(), stderr);
    return 2;
  }
  if (args[0] == "--version") {
    std::puts(kVersion);
    return 0;
  }
  if (args[0] == "--help" || args[0] == "-h" || args[0] == "help") {
    std::fputs(HelpOf(program).c_str(), stdout);
    return 0;
  }
  const auto* command =
      std::find_if(program.commands.begin(), program.commands.end(),
                   [&](const Command& candidate) { return args[0] == candidate.name; });
  if (command == program.commands.end()) {
    std::fprintf(stderr, "%s: there is no command \"%s\"\n\n%s", program.name, args[0].c_str(),
                 HelpOf(program).c_str());
    return 2;
  }
  absl::Status status = command->run(Arguments(args).subspan(1));
  if (status.ok()) status = WriteOutput();
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s %s: %s\n", program.name, command->name,
               std::string(status.message()).c_str());
  return 1;
}

}  // namespace latentd
