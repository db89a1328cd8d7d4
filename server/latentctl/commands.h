#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace latentd {

// One subcommand each: `args` are those after its name. They print to stdout what was asked for; an
// error is for stderr.
using Arguments = absl::Span<const std::string>;
absl::Status GenerateCommand(Arguments args);
absl::Status ChatCommand(Arguments args);
absl::Status TokenizeCommand(Arguments args);
absl::Status ModelCommand(Arguments args);
absl::Status StatsCommand(Arguments args);
absl::Status BenchCommand(Arguments args);

}  // namespace latentd
