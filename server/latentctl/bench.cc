#include <algorithm>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "nlohmann/json.hpp"
#include "server/latentctl/commands.h"
#include "server/latentctl/load.h"
#include "server/latentctl/message_json.h"
#include "server/latentctl/request_flags.h"

namespace latentd {
namespace {

using nlohmann::ordered_json;

double Milliseconds(absl::Duration duration) { return absl::ToDoubleMilliseconds(duration); }

// The smallest value that at least `share` of them do not exceed; 0 of none.
double Percentile(std::vector<double> values, double share) {
  if (values.empty()) return 0;
  const auto count = static_cast<double>(values.size());
  const auto index = std::max<int64_t>(static_cast<int64_t>(std::ceil(share * count)) - 1, 0);
  std::nth_element(values.begin(), values.begin() + index, values.end());
  return values[index];
}

// What "good" means: both limits kept.
struct Objective {
  double ttft_ms = 1000;
  double tpot_ms = 100;
};

ordered_json Summarise(const LoadResult& result, const Objective& objective) {
  std::vector<double> ttft, tpot, itl, e2e, late;
  std::map<std::string, int> statuses;
  int64_t output_tokens = 0;
  int good = 0;
  for (const LoadRow& row : result.rows) {
    ++statuses[absl::StatusCodeToString(row.status.code())];
    output_tokens += row.output_tokens;
    late.push_back(Milliseconds(row.sent_late));
    if (row.output_tokens > 0) ttft.push_back(Milliseconds(row.ttft));
    for (absl::Duration gap : row.gaps) itl.push_back(Milliseconds(gap));
    if (!row.status.ok()) continue;
    e2e.push_back(Milliseconds(row.e2e));
    if (row.output_tokens > 1) tpot.push_back(Milliseconds(row.tpot()));
    const bool in_time = Milliseconds(row.ttft) <= objective.ttft_ms;
    good += in_time && (row.output_tokens < 2 || Milliseconds(row.tpot()) <= objective.tpot_ms);
  }
  const double seconds = absl::ToDoubleSeconds(result.duration);
  ordered_json json = {{"requests", result.rows.size()},
                       {"ok", statuses["OK"]},
                       {"rejected", statuses["RESOURCE_EXHAUSTED"] + statuses["UNAVAILABLE"]},
                       {"ttft_ms_p50", Percentile(ttft, .5)},
                       {"ttft_ms_p90", Percentile(ttft, .9)},
                       {"ttft_ms_p99", Percentile(ttft, .99)},
                       {"tpot_ms_p50", Percentile(tpot, .5)},
                       {"tpot_ms_p99", Percentile(tpot, .99)},
                       {"itl_ms_p50", Percentile(itl, .5)},
                       {"itl_ms_p99", Percentile(itl, .99)},
                       {"e2e_ms_p50", Percentile(e2e, .5)},
                       {"e2e_ms_p99", Percentile(e2e, .99)},
                       {"output_tokens_per_s", static_cast<double>(output_tokens) / seconds},
                       {"requests_per_s", static_cast<double>(statuses["OK"]) / seconds},
                       {"goodput", good / seconds},
                       {"output_tokens", output_tokens},
                       {"seconds", seconds},
                       {"sent_late_ms_p99", Percentile(late, .99)}};
  ordered_json& counts = json["statuses"] = ordered_json::object();
  for (const auto& [code, count] : statuses) {
    if (count > 0) counts[code] = count;
  }
  return json;
}

ordered_json RowJson(const LoadRow& row) {
  ordered_json json = {{"index", row.index},
                       {"due_ms", Milliseconds(row.due)},
                       {"sent_late_ms", Milliseconds(row.sent_late)},
                       {"status", absl::StatusCodeToString(row.status.code())},
                       {"reason", row.reason},
                       {"cancelled_by_us", row.cancelled_by_us},
                       {"output_tokens", row.output_tokens},
                       {"e2e_ms", Milliseconds(row.e2e)}};
  if (row.output_tokens > 0) json["ttft_ms"] = Milliseconds(row.ttft);
  if (row.output_tokens > 1) json["tpot_ms"] = Milliseconds(row.tpot());
  if (!row.gaps.empty())
    json["itl_ms_max"] = Milliseconds(*std::max_element(row.gaps.begin(), row.gaps.end()));
  if (!row.status.ok()) json["message"] = std::string(row.status.message());
  return json;
}

absl::Status CannotWrite(const std::string& path) {
  return absl::InternalError(absl::StrCat("--rows: cannot write ", path));
}

void Print(const ordered_json& json, const Objective& objective) {
  const auto number = [&](const char* key) { return json[key].get<double>(); };
  std::printf("%.0f requests in %.1f s:", number("requests"), number("seconds"));
  for (const auto& [code, count] : json["statuses"].items()) {
    std::printf(" %d %s", count.get<int>(), code.c_str());
  }
  std::puts("");
  std::printf("%-22s p50 %.1f  p90 %.1f  p99 %.1f ms\n", "time to first token",
              number("ttft_ms_p50"), number("ttft_ms_p90"), number("ttft_ms_p99"));
  std::printf("%-22s p50 %.2f  p99 %.2f ms\n", "time per output token", number("tpot_ms_p50"),
              number("tpot_ms_p99"));
  std::printf("%-22s p50 %.2f  p99 %.2f ms\n", "between tokens", number("itl_ms_p50"),
              number("itl_ms_p99"));
  std::printf("%-22s p50 %.0f  p99 %.0f ms\n", "end to end", number("e2e_ms_p50"),
              number("e2e_ms_p99"));
  std::printf("%-22s %.1f output tokens/s, %.2f requests/s\n", "throughput",
              number("output_tokens_per_s"), number("requests_per_s"));
  std::printf("%-22s %.2f requests/s (first token within %g ms, later ones within %g ms each)\n",
              "goodput", number("goodput"), objective.ttft_ms, objective.tpot_ms);
}

}  // namespace

absl::Status BenchCommand(Arguments args) {
  std::string target, rows_path;
  LoadOptions load;
  Objective objective;
  bool json = false;
  CommandLine flags(
      {.program = "latentctl bench",
       .summary = "Sends many requests with random prompts and measures what a client sees.",
       .example =
           "latentctl bench --requests 200 --rate 4 --prompt-tokens 256 --output-tokens 64 --json",
       .positional = ""});
  AddTargetFlag(&flags, &target);
  flags.Add("requests", &load.requests, "N", "requests in all", {.min = 1, .max = 1e6});
  flags.Add("concurrency", &load.concurrency, "C", "closed loop: so many at a time",
            {.min = 1, .max = 4096});
  flags.Add("rate", &load.rate, "R",
            "open loop: R arrivals per second (Poisson); 0: the closed loop", {.min = 0});
  flags.Add("prompt-tokens", &load.prompt_tokens, "N", "tokens of each prompt",
            {.min = 1, .max = 1e6});
  flags.Add("output-tokens", &load.output_tokens, "N", "tokens to generate for each",
            {.min = 1, .max = 1e6});
  flags.Add("cancel", &load.cancel, "SHARE", "share of the requests that are cancelled halfway",
            {.min = 0, .max = 1});
  flags.Add("deadline-ms", &load.deadline_ms, "MS", "deadline of each request; 0: none",
            {.min = 0});
  flags.Add("seed", &load.seed, "N", "of prompts, arrival times and cancels");
  flags.Add("slo-ttft-ms", &objective.ttft_ms, "MS", "goodput: most time to the first token",
            {.min = 0});
  flags.Add("slo-tpot-ms", &objective.tpot_ms, "MS", "goodput: most time per later token",
            {.min = 0});
  flags.Add("rows", &rows_path, "FILE", "write one JSON object per request");
  flags.Add("json", &json, "print one JSON object");
  flags.ParseOrExit(args);

  std::ofstream rows;
  if (!rows_path.empty()) {
    rows.open(rows_path);
    if (!rows) return CannotWrite(rows_path);  // now, not after all the work
  }
  ASSIGN_OR_RETURN(const v1::GetModelResponse model, Client(target).GetModel());
  load.vocab_size = model.vocab_size();
  const LoadResult result = RunLoad(target, load);
  const ordered_json summary = Summarise(result, objective);
  if (json) {
    std::fputs(JsonLine(summary).c_str(), stdout);
  } else {
    Print(summary, objective);
  }
  if (!rows_path.empty()) {
    for (const LoadRow& row : result.rows) rows << JsonLine(RowJson(row));
    rows.flush();
    if (!rows) return CannotWrite(rows_path);
  }
  // Statuses that the load itself provokes are no failures.
  const LoadRow* failed = nullptr;
  for (const LoadRow& row : result.rows) {
    const bool asked_for = row.cancelled_by_us || absl::IsResourceExhausted(row.status) ||
                           (load.deadline_ms > 0 && absl::IsDeadlineExceeded(row.status));
    if (!row.status.ok() && !asked_for) failed = &row;
  }
  if (failed == nullptr) return absl::OkStatus();
  return absl::Status(failed->status.code(),
                      absl::StrCat("request ", failed->index, ": ", failed->status.message()));
}

}  // namespace latentd
