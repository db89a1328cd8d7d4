#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/command_line.h"
#include "engine/checkpoint/latents_file.h"
#include "engine/evaluation/windows.h"
#include "engine/open_model.h"

namespace latentd {

// The flags of the commands that measure on windows of a text.
struct TestTextOptions {
  std::string text;           // --text
  std::string count = "all";  // --count
  WindowOptions windows;      // --window, --windows, --first-windows, --stride
  bool allow_overlap = false;
};

void AddTestTextFlags(CommandLine* flags, TestTextOptions* options);

struct TestText {
  std::vector<int32_t> ids;
  std::vector<TextWindow> windows;  // of `ids`
};

// Reads the text with the model's tokenizer, without special tokens, and cuts it. INVALID_ARGUMENT
// names the flag; otherwise as CheckOverlap.
absl::StatusOr<TestText> OpenTestText(const TestTextOptions& options, const OpenedModel& model);

// INVALID_ARGUMENT names the flags that are missing, wrong or contradict each other, before a text
// is opened.
absl::Status CheckTestTextFlags(const TestTextOptions& options);

// FAILED_PRECONDITION naming `what` and the number of shared shingles when the windows' text is
// what the latents (null: none) were calibrated on, unless that is allowed.
absl::Status CheckOverlap(absl::Span<const TextWindow> windows, const Latents* latents,
                          const std::string& what, bool allow_overlap);

}  // namespace latentd
