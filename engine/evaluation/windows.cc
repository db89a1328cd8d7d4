#include "engine/evaluation/windows.h"

#include <algorithm>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace latentd {

absl::Status CheckWindowOptions(const WindowOptions& options) {
  if (options.windows > 0 && options.first_windows > 0) {
    return absl::InvalidArgumentError(absl::StrCat("--windows is ", options.windows,
                                                   " and --first-windows is ",
                                                   options.first_windows, ": give one of the two"));
  }
  if (options.stride == 0) return absl::OkStatus();
  if (options.stride >= options.window) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--stride is ", options.stride, ", it must be below --window, which is ", options.window));
  }
  if (options.windows > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("--stride is ", options.stride, " and --windows is ", options.windows,
                     ": windows with a stride follow one another, --first-windows bounds them"));
  }
  if (options.second_half) {
    return absl::InvalidArgumentError(
        absl::StrCat("--stride is ", options.stride,
                     " and --count is second-half: a stride decides itself what counts"));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<TextWindow>> SplitIntoWindows(absl::Span<const int32_t> ids,
                                                         const WindowOptions& options) {
  RETURN_IF_ERROR(CheckWindowOptions(options));
  const int64_t length = static_cast<int64_t>(ids.size());
  const int64_t step = options.stride > 0 ? options.stride : options.window;
  const int64_t fitting = length < options.window ? 0 : (length - options.window) / step + 1;
  const int64_t count = options.first_windows > 0 ? options.first_windows
                        : options.windows > 0     ? options.windows
                                                  : fitting;
  if (fitting < 1 || count > fitting) {
    const int64_t asked = std::max<int64_t>(count, 1);
    return absl::InvalidArgumentError(
        absl::StrCat("the text has ", length, " tokens, ", WindowsOf(asked, options.window),
                     asked == 1 ? " needs " : " need ", (asked - 1) * step + options.window));
  }
  std::vector<TextWindow> windows;
  windows.reserve(count);
  for (int64_t i = 0; i < count; ++i) {
    const bool spaced = options.windows > 1;
    const int64_t start = spaced ? (length - options.window) * i / (count - 1) : i * step;
    TextWindow window{.tokens = ids.subspan(start, options.window)};
    if (options.second_half) window.first_counted = options.window / 2 + 1;
    if (options.stride > 0 && i > 0) window.first_counted = options.window - options.stride;
    windows.push_back(window);
  }
  return windows;
}

Batch WindowStep(const TextWindow& window, int begin, int end) {
  std::vector<int32_t> blocks((window.tokens.size() + kBlockTokens - 1) / kBlockTokens);
  std::iota(blocks.begin(), blocks.end(), 0);
  Batch batch{.max_blocks = static_cast<int64_t>(blocks.size())};
  AppendRows(&batch, window.tokens, begin, end, blocks, 0);
  return batch;
}

absl::Status CheckWindows(absl::Span<const TextWindow> windows, const EngineInfo& info) {
  for (const TextWindow& window : windows) {
    if (static_cast<int64_t>(window.tokens.size()) > info.max_context) {
      return absl::InvalidArgumentError(absl::StrCat("--window is ", window.tokens.size(),
                                                     ", the context is ", info.max_context));
    }
    for (const int32_t id : window.tokens) {
      if (id >= 0 && id < info.vocab_size) continue;
      return absl::InvalidArgumentError(absl::StrCat("the text has the token id ", id,
                                                     ", the vocabulary of ", info.model_name,
                                                     " has ", info.vocab_size));
    }
  }
  return absl::OkStatus();
}

}  // namespace latentd
