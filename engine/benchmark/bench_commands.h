#pragma once

#include "absl/status/status.h"
#include "base/commands.h"

namespace latentd {

// The commands of latent-bench, one file each.
absl::Status StepCommand(Arguments args);
absl::Status KernelsCommand(Arguments args);

}  // namespace latentd
