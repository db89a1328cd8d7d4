#include "engine/evaluation/test_text.h"

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/mapped_file.h"
#include "base/status_macros.h"
#include "engine/text/shingles.h"
#include "engine/text/tokenizer.h"

namespace latentd {
namespace {

WindowOptions WindowOptionsOf(const TestTextOptions& options) {
  WindowOptions windows = options.windows;
  windows.second_half = options.count == "second-half";
  return windows;
}

}  // namespace

void AddTestTextFlags(CommandLine* flags, TestTextOptions* options) {
  flags->Add("text", &options->text, "FILE", "UTF-8 text to measure on");
  flags->Add("window", &options->windows.window, "N", "tokens of one window", {.min = 4});
  flags->Add("windows", &options->windows.windows, "N",
             "windows, evenly spaced; 0: all that fit, one after the other", {.min = 0});
  flags->Add("first-windows", &options->windows.first_windows, "N", "the first N windows instead",
             {.min = 0});
  flags->Add("stride", &options->windows.stride, "N",
             "> 0: windows overlap, each begins N tokens on and counts its last N tokens",
             {.min = 0});
  flags->Add("count", &options->count, "all|second-half",
             "which tokens of each window count; llama-perplexity counts the second half");
  flags->Add("allow-overlap", &options->allow_overlap,
             "measure even on a text that the latents were calibrated on");
}

absl::Status CheckTestTextFlags(const TestTextOptions& options) {
  if (options.text.empty())
    return absl::InvalidArgumentError("--text is missing: the file to measure on");
  if (options.count != "all" && options.count != "second-half") {
    return absl::InvalidArgumentError(
        absl::StrCat("--count is \"", options.count, "\", allowed: all, second-half"));
  }
  return CheckWindowOptions(WindowOptionsOf(options));
}

absl::StatusOr<TestText> OpenTestText(const TestTextOptions& options, const OpenedModel& model) {
  RETURN_IF_ERROR(CheckTestTextFlags(options));
  ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file, MappedFile::Open(options.text));
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                   Tokenizer::Create(model.checkpoint->tokenizer()));
  TestText text;
  ASSIGN_OR_RETURN(text.ids, tokenizer->Encode({reinterpret_cast<const char*>(file->bytes().data()),
                                                file->bytes().size()},
                                               false, false));
  ASSIGN_OR_RETURN(text.windows, SplitIntoWindows(text.ids, WindowOptionsOf(options)));
  RETURN_IF_ERROR(CheckOverlap(text.windows, model.latents.get(),
                               absl::StrCat("--text ", options.text), options.allow_overlap));
  return text;
}

absl::Status CheckOverlap(absl::Span<const TextWindow> windows, const Latents* latents,
                          const std::string& what, bool allow_overlap) {
  if (allow_overlap || latents == nullptr || latents->shingles.empty()) return absl::OkStatus();
  std::vector<std::vector<int32_t>> tokens;
  tokens.reserve(windows.size());
  for (const TextWindow& window : windows) {
    tokens.emplace_back(window.tokens.begin(), window.tokens.end());
  }
  const ShingleOverlap overlap = CountShared(tokens, latents->shingles);
  if (!overlap.same_text()) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      what, " shares ", overlap.shared, " of its ", overlap.total, " runs of ", kShingleTokens,
      " tokens with the text that the latents were calibrated on: it would measure "
      "too well (--allow-overlap measures all the same)"));
}

}  // namespace latentd
