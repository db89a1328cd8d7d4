#pragma once

#include <string>

#include "absl/status/status.h"
#include "base/command_line.h"
#include "engine/open_model.h"
#include "scheduler/scheduler_config.h"

namespace latentd {

// Everything that latentd can be told, with its defaults.
struct ServerConfig {
  ModelOptions model{.fills_gpu = true};
  SchedulerConfig scheduler;
  std::string listen = "127.0.0.1:50051";         // gRPC; port 0 takes a free one
  std::string metrics_listen = "127.0.0.1:9464";  // HTTP: /metrics /livez /readyz; "off": none
  double drain_seconds = 30;                      // after SIGTERM, for the requests being served
  std::string log_level = "info";
  std::string config_file;  // --config: the same keys, one `key = value` a line
};

// `config` is filled when `flags` are parsed.
void AddServerFlags(CommandLine* flags, ServerConfig* config);

// What is known to be wrong before the model is loaded: INVALID_ARGUMENT names the flag to change.
absl::Status Validate(const ServerConfig& config);

}  // namespace latentd
