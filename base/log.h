#pragma once

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace latentd {

// Sets up spdlog's default logger: lines to stderr as
//   2026-01-31T12:00:00.123Z info  message
// from `level` ("debug", "info", "warn", "error") up. INVALID_ARGUMENT names --log-level and the
// allowed ones. For main().
absl::Status SetUpLog(absl::string_view level);

}  // namespace latentd
