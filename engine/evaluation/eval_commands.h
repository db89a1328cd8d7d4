#pragma once

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

// Progress that the line shows.
inline EvaluationProgress ShowOn(ProgressLine* line) {
  return [line](double share) {
    line->Show(share);
    return absl::OkStatus();
  };
}

}  // namespace latentd
