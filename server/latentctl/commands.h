#pragma once

#include "absl/status/status.h"
#include "base/commands.h"

namespace latentd {

// One command each, as base/commands.h runs them.
absl::Status GenerateCommand(Arguments args);
absl::Status ChatCommand(Arguments args);
absl::Status TokenizeCommand(Arguments args);
absl::Status ModelCommand(Arguments args);
absl::Status StatsCommand(Arguments args);
absl::Status BenchCommand(Arguments args);

}  // namespace latentd
