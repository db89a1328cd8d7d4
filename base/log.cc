#include "base/log.h"

#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "spdlog/pattern_formatter.h"
#include "spdlog/sinks/stdout_sinks.h"
#include "spdlog/spdlog.h"

namespace latentd {

absl::Status SetUpLog(absl::string_view level) {
  static constexpr absl::string_view kLevels[] = {"debug", "info", "warn", "error"};
  bool known = false;
  for (absl::string_view name : kLevels) known = known || name == level;
  if (!known) {
    return absl::InvalidArgumentError(
        absl::StrCat("--log-level is \"", level, "\", but must be debug, info, warn or error"));
  }
  auto logger = std::make_shared<spdlog::logger>("latentd",
                                                 std::make_shared<spdlog::sinks::stderr_sink_mt>());
  logger->set_formatter(std::make_unique<spdlog::pattern_formatter>(
      "%Y-%m-%dT%H:%M:%S.%eZ %-5l %v", spdlog::pattern_time_type::utc));
  logger->set_level(spdlog::level::from_str(std::string(level)));
  logger->flush_on(spdlog::level::info);
  spdlog::set_default_logger(std::move(logger));
  return absl::OkStatus();
}

}  // namespace latentd
