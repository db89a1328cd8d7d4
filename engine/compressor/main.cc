// latent-compress: makes a latents file for an unchanged base model.

#include <csignal>
#include <iostream>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/command_line.h"
#include "base/progress.h"
#include "engine/compressor/compress.h"
#include "nlohmann/json.hpp"

namespace latentd {
namespace {

// Set by SIGINT and SIGTERM: long work ends at its next step, a file that is being written is
// written to its end. The second signal kills. (Masks would not do: the linear algebra library has
// threads before main begins.)
volatile std::sig_atomic_t interrupted = 0;

void EndOnSignals() {
  struct sigaction action = {};
  action.sa_handler = [](int) { interrupted = 1; };
  action.sa_flags = SA_RESTART | static_cast<int>(SA_RESETHAND);
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

void Print(const CompressionReport& report, const std::string& out, bool json) {
  if (json) {
    std::cout << nlohmann::ordered_json({{"out", out},
                                         {"method", report.method},
                                         {"bytes_per_token", report.bytes_per_token},
                                         {"full_bytes_per_token", report.full_bytes_per_token},
                                         {"ratio", report.ratio()},
                                         {"seconds", report.seconds}})
              << "\n";
    return;
  }
  absl::PrintF(
      "%s: %s\n%.1f bytes per token instead of %.0f (ratio %.2f), in %.0f s; see %s.report.md\n",
      out, report.method, report.bytes_per_token, report.full_bytes_per_token, report.ratio(),
      report.seconds, out);
}

int Main(int argc, char** argv) {
  CompressOptions options;
  std::string method = "palu";
  std::vector<std::string> calibration;
  int64_t seed = 0;
  bool json = false;
  CommandLine flags({.program = "latent-compress",
                     .summary = "Factorises a model's key and value projections and writes them as "
                                "a latents file beside the\nunchanged model.",
                     .example = "latent-compress --model model.gguf --out model.latents --method "
                                "palu --rate 0.5 --bits 4"});
  flags.Add("model", &options.model.model, "PATH", "Hugging Face folder or .gguf file");
  flags.Add("out", &options.out, "FILE",
            "latents file to write or replace; its reports lie beside it");
  flags.Add("method", &method, "NAME",
            "palu: uniform ranks, truncation-aware whitening (arXiv 2407.21118)");
  flags.Add("rate", &options.palu.rate, "R",
            "share of dims cut, as the paper counts; what is kept is rounded to a multiple of 16");
  flags.Add("bits", &options.palu.bits, "N",
            "of a stored value: 4, 3, 2 (min-max), 8 (symmetric), 16, 32 (floating point)");
  flags.Add("group", &options.group, "all|N",
            "KV heads that share a latent; default: the largest divisor <= 4, or all");
  flags.Add("hadamard", &options.palu.hadamard,
            "rotate latents before coding; --no-hadamard leaves it out");
  flags.Add("calibration", &calibration, "self|FILE",
            "text to calibrate on, files may be repeated; default: self, sampled from the model");
  flags.Add("windows", &options.windows, "N", "calibration windows", {.min = 1, .max = 100000});
  flags.Add("window", &options.window_tokens, "N", "tokens of a calibration window", {.min = 16});
  flags.Add("seed", &seed, "N", "of the sampled text", {.min = 0});
  flags.Add("device", &options.model.device, "NAME", "where to compute: cpu");
  flags.Add("threads", &options.model.threads, "N", "threads; 0: one per core",
            {.min = 0, .max = 1024});
  flags.Add("json", &json, "print the result as one JSON object");
  flags.ParseOrExit(argc, argv);
  if (method != "palu") {
    std::cerr << "latent-compress: --method is \"" << method << "\", allowed: palu\n";
    return 2;
  }
  options.seed = static_cast<uint64_t>(seed);
  if (calibration != std::vector<std::string>{"self"}) options.calibration = calibration;

  EndOnSignals();
  std::string shown;
  std::optional<ProgressLine> line;
  const absl::StatusOr<CompressionReport> report =
      Compress(options, [&](std::string_view what, double share) -> absl::Status {
        if (what != shown) {
          line.reset();
          line.emplace(shown = what);
        }
        line->Show(share);
        return interrupted ? absl::CancelledError("interrupted, nothing was written")
                           : absl::OkStatus();
      });
  line.reset();
  if (!report.ok()) {
    std::cerr << "latent-compress: " << report.status().message() << "\n";
    return 1;
  }
  Print(*report, options.out, json);
  return 0;
}

}  // namespace
}  // namespace latentd

int main(int argc, char** argv) { return latentd::Main(argc, argv); }
