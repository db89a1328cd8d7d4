// latent-compress: makes a latents file for an unchanged base model.

#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <iostream>
#include <optional>
#include <string>

#include "absl/strings/str_format.h"
#include "base/command_line.h"
#include "base/progress.h"
#include "engine/compressor/compress_flags.h"
#include "engine/compressor/matrix.h"
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

// The linear algebra library has chosen its code before main begins: where that is the wrong one
// and the user has not named it, the program begins again.
void BeginWithBetterCode(char** argv) {
  constexpr const char* kVariable = "OPENBLAS_CORETYPE";
  const std::string code = BetterCoreType();
  if (code.empty() || std::getenv(kVariable) != nullptr) return;
  setenv(kVariable, code.c_str(), /*overwrite=*/0);
  execv("/proc/self/exe", argv);
  std::cerr << "latent-compress: OpenBLAS does not know this processor and takes its oldest code, "
               "several times slower; set "
            << kVariable << "=" << code << "\n";
}

void Print(const CompressionReport& report, const std::string& out, bool json) {
  if (json) {
    nlohmann::ordered_json figures = {{"out", out},
                                      {"method", report.method},
                                      {"bytes_per_token", report.bytes_per_token},
                                      {"bytes_per_sequence", report.bytes_per_sequence},
                                      {"full_bytes_per_token", report.full_bytes_per_token},
                                      {"ratio", report.ratio()},
                                      {"kl_mean", report.measured.kl_mean},
                                      {"top1", report.measured.top1},
                                      {"seconds", report.seconds},
                                      {"resumed", report.resumed},
                                      {"peak_bytes", report.peak_bytes}};
    if (report.predicted_kl.has_value()) figures["predicted_kl"] = *report.predicted_kl;
    if (report.allowed_bytes_per_token.has_value()) {
      figures["allowed_bytes_per_token"] = *report.allowed_bytes_per_token;
    }
    std::cout << figures << "\n";
    return;
  }
  absl::PrintF(
      "%s: %s\n%.1f bytes per token%s instead of %.0f (ratio %.2f), and %s per sequence\n"
      "KL %.4f nats per token on %d held-out tokens, the same likeliest token for %.1f %%\n"
      "in %.0f s%s, with %s of memory at most; see %s.report.md\n",
      out, report.method, report.bytes_per_token, report.OfTheAllowed(),
      report.full_bytes_per_token, report.ratio(), FormatBytes(report.bytes_per_sequence),
      report.measured.kl_mean, report.measured.tokens, 100 * report.measured.top1, report.seconds,
      report.resumed ? " after what an earlier run had measured" : "",
      FormatBytes(static_cast<double>(report.peak_bytes)), out);
}

int Main(int argc, char** argv) {
  CommandLine flags({.program = "latent-compress",
                     .summary = "Factorises a model's key and value projections and writes them as "
                                "a latents file beside the\nunchanged model.",
                     .example = "latent-compress --model model.gguf --out model.latents --preset "
                                "balanced"});
  const CompressFlags compress(&flags);
  flags.ParseOrExit(argc, argv);
  const absl::StatusOr<CompressOptions> options = compress.Options();
  const absl::Status valid = options.ok() ? ValidateFlags(*options) : options.status();
  if (!valid.ok()) {
    std::cerr << "latent-compress: " << valid.message() << "\n";
    return 2;
  }

  BeginWithBetterCode(argv);
  EndOnSignals();
  std::string shown;
  std::optional<ProgressLine> line;
  const absl::StatusOr<CompressionReport> report =
      Compress(*options, [&](std::string_view what, double share) -> absl::Status {
        if (what != shown) {
          line.reset();
          line.emplace(shown = what);
        }
        line->Show(share);
        return interrupted ? absl::CancelledError("interrupted") : absl::OkStatus();
      });
  line.reset();
  if (!report.ok()) {
    std::cerr << "latent-compress: " << report.status().message() << "\n";
    return 1;
  }
  Print(*report, options->out, compress.json());
  return 0;
}

}  // namespace
}  // namespace latentd

int main(int argc, char** argv) { return latentd::Main(argc, argv); }
