#pragma once

#include "absl/status/status.h"
#include "base/commands.h"

namespace latentd {

// The commands of latent-eval, one file each.
absl::Status PerplexityCommand(Arguments args);
absl::Status DivergenceCommand(Arguments args);
absl::Status TasksCommand(Arguments args);
absl::Status RetrievalCommand(Arguments args);
absl::Status GenerateCompareCommand(Arguments args);

}  // namespace latentd
