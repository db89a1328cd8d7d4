#include "server/config.h"

#include <filesystem>
#include <system_error>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "base/status_macros.h"

namespace latentd {
namespace {

// HOST:PORT with a port in [0, 65535]; an IPv6 host stands in brackets.
absl::Status CheckAddress(absl::string_view flag, absl::string_view address) {
  const size_t colon = address.rfind(':');
  int port = -1;
  const bool well_formed = colon != address.npos && colon > 0 &&
                           absl::SimpleAtoi(address.substr(colon + 1), &port) && port >= 0 &&
                           port <= 65535;
  if (well_formed) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " is \"", address, "\", but must be HOST:PORT with a port in [0, 65535]"));
}

absl::Status CheckExists(absl::string_view flag, const std::string& path) {
  std::error_code error;
  if (std::filesystem::exists(path, error)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(flag, " is \"", path, "\", but there is no such file or folder"));
}

}  // namespace

void AddServerFlags(CommandLine* flags, ServerConfig* config) {
  AddModelFlags(flags, &config->model);
  flags->Add("listen", &config->listen, "HOST:PORT", "address of the gRPC services");
  flags->Add("metrics-listen", &config->metrics_listen, "HOST:PORT",
             "address of /metrics, /livez and /readyz; off: none");
  flags->Add("max-batch-tokens", &config->scheduler.max_batch_tokens, "N",
             "tokens computed in one step", {.min = 1, .max = 65536});
  flags->Add("max-sequences", &config->scheduler.max_sequences, "N",
             "requests computed at the same time; each has a place in --cache-bytes",
             {.min = 1, .max = 65536});
  flags->Add("max-queued", &config->scheduler.max_queued_requests, "N",
             "requests that may wait beyond those", {.min = 1, .max = 1000000});
  flags->Add("drain-seconds", &config->drain_seconds, "S",
             "time that running requests get to finish after SIGTERM", {.min = 0, .max = 86400});
  flags->Add("log-level", &config->log_level, "LEVEL", "debug, info, warn or error");
  flags->Add("config", &config->config_file, "FILE",
             "more flags, one `key = value` a line; the command line wins");
}

absl::Status Validate(const ServerConfig& config) {
  if (config.model.model.empty()) {
    return absl::InvalidArgumentError("--model is missing: a Hugging Face folder or a .gguf file");
  }
  RETURN_IF_ERROR(CheckExists("--model", config.model.model));
  RETURN_IF_ERROR(ValidateCache(config.model));
  if (!config.model.latents.empty()) {
    RETURN_IF_ERROR(CheckExists("--latents", config.model.latents));
  }
  RETURN_IF_ERROR(CheckAddress("--listen", config.listen));
  if (config.metrics_listen != "off") {
    RETURN_IF_ERROR(CheckAddress("--metrics-listen", config.metrics_listen));
  }
  const SchedulerConfig& limits = config.scheduler;
  if (limits.max_sequences > limits.max_batch_tokens) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--max-sequences is ", limits.max_sequences,
        ", but must be at most --max-batch-tokens, which is ", limits.max_batch_tokens));
  }
  return Validate(limits);
}

}  // namespace latentd
