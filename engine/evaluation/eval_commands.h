#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/status/status.h"
#include "base/commands.h"
#include "base/progress.h"
#include "engine/evaluation/windows.h"

namespace latentd {

// The commands of latent-eval, one file each.
absl::Status PerplexityCommand(Arguments args);
absl::Status DivergenceCommand(Arguments args);
absl::Status TasksCommand(Arguments args);
absl::Status RetrievalCommand(Arguments args);
absl::Status GenerateCompareCommand(Arguments args);

// What is wrong with a command's flags alone goes to stderr and ends the program with 2, as in
// CommandLine::ParseOrExit.
inline void ExitIfWrong(const char* program, const absl::Status& flags) {
  if (flags.ok()) return;
  std::fprintf(stderr, "%s: %s\n", program, std::string(flags.message()).c_str());
  std::exit(2);  // NOLINT(concurrency-mt-unsafe): flags are read before there are threads
}

// Progress that the line shows.
inline EvaluationProgress ShowOn(ProgressLine* line) {
  return [line](double share) {
    line->Show(share);
    return absl::OkStatus();
  };
}

}  // namespace latentd
