#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace latentd {

// The arguments after a command's name.
using Arguments = absl::Span<const std::string>;

struct Command {
  const char* name;
  absl::Status (*run)(Arguments args);  // prints what was asked for to stdout
  const char* summary;
};

// A program that is a set of commands: `PROGRAM COMMAND [flags]`.
struct CommandProgram {
  const char* name;
  const char* summary;  // a sentence
  const char* example;  // one command line that works
  absl::Span<const Command> commands;
};

// For main(): runs the command that the first argument names. Exit status 0 when it did what was
// asked, 1 after an error, which goes to stderr, 2 for a command that does not exist. --help lists
// the commands.
int RunCommand(const CommandProgram& program, int argc, char** argv);

}  // namespace latentd
