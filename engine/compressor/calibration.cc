#include "engine/compressor/calibration.h"

#include <algorithm>
#include <numeric>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/mapped_file.h"
#include "base/status_macros.h"
#include "engine/batch.h"
#include "engine/evaluation/windows.h"
#include "kernels/cache_layout.h"

namespace latentd {
namespace {

// What the user's turn begins with: the chat template up to a marker in the place of the user's
// text.
absl::StatusOr<std::string> UserTurnPrefix(const ChatTemplate& chat_template) {
  const std::string marker = "@@latentd@@";
  ASSIGN_OR_RETURN(const std::string text,
                   chat_template.Render({{.role = "user", .content = marker}}, false));
  return text.substr(0, text.find(marker));
}

// Draws one more token for every window that is shorter than `tokens`. Window i lies in the blocks
// from i * blocks_per_window on and draws with seed + i; all but its last token are in the cache if
// `computed`, none otherwise.
absl::Status ExtendEach(Engine& engine, int tokens, int blocks_per_window, uint64_t seed,
                        bool computed, absl::Span<std::vector<int32_t>> windows) {
  Batch batch{.max_blocks = blocks_per_window};
  std::vector<int32_t> blocks(blocks_per_window);
  std::vector<std::vector<int32_t>*> extended;
  for (size_t i = 0; i < windows.size(); ++i) {
    const int length = static_cast<int>(windows[i].size());
    if (length >= tokens) continue;
    std::iota(blocks.begin(), blocks.end(), static_cast<int32_t>(i) * blocks_per_window);
    const int row = AppendRows(&batch, windows[i], computed ? length - 1 : 0, length, blocks,
                               static_cast<int>(i));
    batch.samples.push_back({.row = row, .params = {.seed = seed + i}, .position = length});
    extended.push_back(&windows[i]);
  }
  ASSIGN_OR_RETURN(const StepOutput output, engine.Step(batch));
  for (size_t i = 0; i < extended.size(); ++i) {
    if (!output.samples[i].ok) return absl::InternalError("the model's logits are not finite");
    extended[i]->push_back(output.samples[i].token_id);
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<CalibrationWindows> WindowsFromFiles(const std::vector<std::string>& paths,
                                                    const Tokenizer& tokenizer, int count,
                                                    int tokens) {
  CalibrationWindows windows;
  const int files = static_cast<int>(paths.size());
  if (count < files) {
    return absl::InvalidArgumentError(
        absl::StrCat("--calibration names ", files, " files, for ", count, " windows"));
  }
  for (int f = 0; f < files; ++f) {
    const int share = count / files + (f < count % files ? 1 : 0);
    ASSIGN_OR_RETURN(const std::shared_ptr<const MappedFile> file, MappedFile::Open(paths[f]));
    const std::string_view text(reinterpret_cast<const char*>(file->bytes().data()),
                                file->bytes().size());
    const absl::StatusOr<std::vector<int32_t>> encoded = tokenizer.Encode(text, false, false);
    if (!encoded.ok()) {
      return absl::Status(encoded.status().code(), absl::StrCat("--calibration ", paths[f], ": ",
                                                                encoded.status().message()));
    }
    const std::vector<int32_t>& ids = *encoded;
    const int64_t length = static_cast<int64_t>(ids.size());
    if (length < int64_t{share} * tokens) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--calibration ", paths[f], " has ", length, " tokens, its ", WindowsOf(share, tokens),
          share == 1 ? " needs " : " need ", int64_t{share} * tokens));
    }
    for (int w = 0; w < share; ++w) {
      const int64_t begin = share == 1 ? 0 : (length - tokens) * w / (share - 1);
      windows.emplace_back(ids.begin() + begin, ids.begin() + begin + tokens);
    }
  }
  return windows;
}

absl::StatusOr<CalibrationWindows> WindowsFromModel(Engine& engine, const ModelConfig& config,
                                                    const Tokenizer& tokenizer,
                                                    const ChatTemplate* chat_template, int count,
                                                    int tokens, uint64_t seed,
                                                    const Progress& progress) {
  const int blocks_per_window = (tokens + kBlockTokens - 1) / kBlockTokens;
  const int64_t at_once =
      std::min<int64_t>(engine.info().num_blocks / blocks_per_window, engine.info().num_sequences);
  if (at_once < 1) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a window of ", tokens, " tokens needs ", blocks_per_window,
                     " cache blocks, the pool has ", engine.info().num_blocks));
  }
  std::vector<int32_t> start = {std::max(0, config.bos_token_id)};
  std::vector<int32_t> user_turn = start;
  if (chat_template != nullptr) {
    ASSIGN_OR_RETURN(const std::string prefix, UserTurnPrefix(*chat_template));
    ASSIGN_OR_RETURN(user_turn, tokenizer.Encode(prefix, false, true));
    if (user_turn.empty() || static_cast<int>(user_turn.size()) >= tokens) user_turn = start;
  }
  CalibrationWindows windows;
  for (int i = 0; i < count; ++i) windows.push_back(i % 2 == 0 ? start : user_turn);
  for (int64_t first = 0; first < count; first += at_once) {
    const auto group = absl::MakeSpan(windows).subspan(first, at_once);
    for (bool computed = false;; computed = true) {
      size_t shortest = tokens;
      for (const std::vector<int32_t>& window : group) shortest = std::min(shortest, window.size());
      const double group_share = static_cast<double>(shortest) / tokens;
      RETURN_IF_ERROR(progress((first + group_share * group.size()) / count));
      if (static_cast<int>(shortest) == tokens) break;
      RETURN_IF_ERROR(ExtendEach(engine, tokens, blocks_per_window, seed + first, computed, group));
    }
  }
  return windows;
}

}  // namespace latentd
