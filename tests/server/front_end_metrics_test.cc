#include "server/front_end_metrics.h"

#include <fstream>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "prometheus/registry.h"
#include "scheduler/metrics.h"
#include "scheduler/serve_stats.h"
#include "server/process_metrics.h"

namespace latentd {
namespace {

std::string TypeName(prometheus::MetricType type) {
  switch (type) {
    case prometheus::MetricType::Counter:
      return "counter";
    case prometheus::MetricType::Gauge:
      return "gauge";
    case prometheus::MetricType::Histogram:
      return "histogram";
    default:
      return "other";
  }
}

// "name type label,label" of each family that /metrics shows once everything has happened.
std::set<std::string> Shown() {
  prometheus::Registry registry;
  SchedulerMetrics scheduler(registry);
  FrontEndMetrics front_end(registry, {});
  scheduler.OnFinished({.reason = FinishReason::kStop}, RequestPhase::kDecode, absl::Seconds(1));
  front_end.OnRpcStarted("Generate");
  front_end.OnRpcDone("Generate", 0, absl::Seconds(1));
  front_end.OnRequestDone(0, "stop");
  front_end.OnStreamDropped("slow_reader");
  std::vector<prometheus::MetricFamily> families = registry.Collect();
  AppendProcessMetrics(&families);
  std::set<std::string> shown;
  for (const prometheus::MetricFamily& family : families) {
    std::set<std::string> labels;
    for (const auto& label : family.metric.at(0).label) labels.insert(label.name);
    shown.insert(
        absl::StrCat(family.name, " ", TypeName(family.type), " ", absl::StrJoin(labels, ",")));
  }
  return shown;
}

// The same of the rows "| `name` | type | `label` = a, b; `label` | meaning |" of docs/metrics.md.
std::set<std::string> Documented() {
  std::ifstream file(LATENTD_SOURCE_DIR "/docs/metrics.md");
  std::set<std::string> rows;
  for (std::string line; std::getline(file, line);) {
    const std::vector<std::string> cells = absl::StrSplit(line, " | ");
    if (cells.size() < 4 || cells[0].substr(0, 3) != "| `") continue;
    const std::vector<std::string> labels = absl::StrSplit(cells[2], '`');
    std::set<std::string> names;
    for (size_t i = 1; i < labels.size(); i += 2) names.insert(labels[i]);
    rows.insert(absl::StrCat(cells[0].substr(3, cells[0].size() - 4), " ", cells[1], " ",
                             absl::StrJoin(names, ",")));
  }
  return rows;
}

TEST(FrontEndMetricsTest, TheTableInDocsListsWhatTheServerShows) {
  EXPECT_THAT(Documented(), testing::ContainerEq(Shown()));
}

}  // namespace
}  // namespace latentd
