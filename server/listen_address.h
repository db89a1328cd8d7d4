#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace latentd {

// INVALID_ARGUMENT that names the flag when nothing can listen on HOST:PORT now, for a start that
// takes long before it listens. Nothing keeps the port free until then.
absl::Status CheckListen(absl::string_view flag, const std::string& address);

// The error of who cannot listen there.
absl::Status CannotListen(absl::string_view flag, absl::string_view address);

}  // namespace latentd
