#include "server/process_metrics.h"

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>

namespace latentd {
namespace {

using prometheus::MetricType;

void Append(const char* name, const char* help, MetricType type, double value,
            std::vector<prometheus::MetricFamily>* families) {
  prometheus::MetricFamily family{.name = name, .help = help, .type = type, .metric = {}};
  prometheus::ClientMetric& metric = family.metric.emplace_back();
  if (type == MetricType::Counter) {
    metric.counter.value = value;
  } else {
    metric.gauge.value = value;
  }
  families->push_back(std::move(family));
}

// Seconds since the epoch when the machine booted.
std::optional<double> BootTime() {
  std::ifstream stat("/proc/stat");
  for (std::string word; stat >> word;) {
    double value;
    if (word == "btime" && stat >> value) return value;
  }
  return std::nullopt;
}

}  // namespace

void AppendProcessMetrics(std::vector<prometheus::MetricFamily>* families) {
  std::ifstream file("/proc/self/stat");
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  // proc(5): the fields after the command's closing parenthesis begin with the third, the state.
  const size_t command_end = text.rfind(')');
  if (command_end == text.npos) return;
  std::istringstream fields(text.substr(command_end + 1));
  std::string state;
  fields >> state;
  constexpr int kFirst = 4, kUserTime = 14, kSystemTime = 15, kStartTime = 22, kVirtual = 23,
                kResident = 24;
  double value[kResident + 1] = {};
  for (int i = kFirst; i <= kResident; ++i) fields >> value[i];
  if (!fields) return;
  const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
  Append("process_cpu_seconds_total", "User and system CPU time", MetricType::Counter,
         (value[kUserTime] + value[kSystemTime]) / ticks, families);
  Append("process_resident_memory_bytes", "Resident memory", MetricType::Gauge,
         value[kResident] * static_cast<double>(sysconf(_SC_PAGESIZE)), families);
  Append("process_virtual_memory_bytes", "Virtual memory", MetricType::Gauge, value[kVirtual],
         families);
  if (const std::optional<double> boot = BootTime()) {
    Append("process_start_time_seconds", "Start, in seconds since the epoch", MetricType::Gauge,
           *boot + value[kStartTime] / ticks, families);
  }
  std::error_code error;
  const std::filesystem::directory_iterator open_files("/proc/self/fd", error);
  if (!error) {
    Append("process_open_fds", "Open file descriptors", MetricType::Gauge,
           static_cast<double>(std::distance(begin(open_files), end(open_files))), families);
  }
}

}  // namespace latentd
