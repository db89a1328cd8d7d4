#include "engine/evaluation/greedy_text.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/batch.h"
#include "engine/evaluation/windows.h"

namespace latentd {
namespace {

// A text at work in the seat of its index.
struct Writer {
  std::vector<int32_t> tokens;  // prompt, then text
  int num_prompt_tokens = 0;
  int computed = 0;
  std::vector<int32_t> blocks;
  bool done = false;
};

int64_t BlocksOf(size_t tokens) {
  return (static_cast<int64_t>(tokens) + kBlockTokens - 1) / kBlockTokens;
}

// One step of all that are not done: rows of their uncomputed tokens while there is room, and a
// token for each that has all of its tokens computed.
absl::Status Step(Engine& engine, std::vector<Writer>& writers, int tokens,
                  absl::Span<const int32_t> stop_token_ids) {
  Batch batch;
  for (const Writer& w : writers) {
    batch.max_blocks = std::max(batch.max_blocks, static_cast<int64_t>(w.blocks.size()));
  }
  std::vector<Writer*> drawing;
  for (size_t s = 0; s < writers.size(); ++s) {
    Writer& w = writers[s];
    const int length = static_cast<int>(w.tokens.size());
    const int end = std::min(length, w.computed + kStepTokens - batch.num_tokens());
    if (w.done || end == w.computed) continue;
    const int row =
        AppendRows(&batch, w.tokens, w.computed, end, w.blocks, static_cast<int32_t>(s));
    w.computed = end;
    if (end < length) continue;
    batch.samples.push_back({.row = row, .params = {.temperature = 0}, .position = length});
    drawing.push_back(&w);
  }
  ASSIGN_OR_RETURN(const StepOutput output, engine.Step(batch));
  for (size_t i = 0; i < drawing.size(); ++i) {
    if (!output.samples[i].ok) return absl::InternalError("logits are not finite");
    Writer& w = *drawing[i];
    w.tokens.push_back(output.samples[i].token_id);
    w.done = static_cast<int>(w.tokens.size()) == w.num_prompt_tokens + tokens ||
             absl::c_linear_search(stop_token_ids, w.tokens.back());
  }
  return absl::OkStatus();
}

absl::Status Check(absl::Span<const std::vector<int32_t>> prompts, int tokens,
                   const EngineInfo& info) {
  for (size_t i = 0; i < prompts.size(); ++i) {
    const size_t length = prompts[i].size() + tokens;
    if (prompts[i].empty())
      return absl::InvalidArgumentError(absl::StrCat("prompt ", i, " is empty"));
    if (static_cast<int64_t>(length) > info.max_context) {
      return absl::InvalidArgumentError(absl::StrCat("prompt ", i, " and its text have ", length,
                                                     " tokens, the context is ", info.max_context));
    }
    if (BlocksOf(length) > info.num_blocks) {
      return absl::InvalidArgumentError(absl::StrCat("prompt ", i, " and its text need ",
                                                     BlocksOf(length), " blocks, the pool has ",
                                                     info.num_blocks));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<std::vector<int32_t>>> GenerateGreedy(
    Engine& engine, absl::Span<const std::vector<int32_t>> prompts, int tokens,
    absl::Span<const int32_t> stop_token_ids) {
  RETURN_IF_ERROR(Check(prompts, tokens, engine.info()));
  std::vector<std::vector<int32_t>> texts;
  while (texts.size() < prompts.size()) {
    std::vector<Writer> writers;
    int64_t used_blocks = 0;
    for (size_t i = texts.size();
         i < prompts.size() && static_cast<int>(writers.size()) < engine.info().num_sequences;
         ++i) {
      const int64_t blocks = BlocksOf(prompts[i].size() + tokens);
      if (used_blocks + blocks > engine.info().num_blocks) break;
      Writer w{.tokens = prompts[i],
               .num_prompt_tokens = static_cast<int>(prompts[i].size()),
               .blocks = std::vector<int32_t>(blocks)};
      std::iota(w.blocks.begin(), w.blocks.end(), static_cast<int32_t>(used_blocks));
      used_blocks += blocks;
      writers.push_back(std::move(w));
    }
    while (!absl::c_all_of(writers, [](const Writer& w) { return w.done; })) {
      RETURN_IF_ERROR(Step(engine, writers, tokens, stop_token_ids));
    }
    for (const Writer& w : writers) {
      texts.emplace_back(w.tokens.begin() + w.num_prompt_tokens, w.tokens.end());
    }
  }
  return texts;
}

TextComparison CompareTexts(absl::Span<const int32_t> a, absl::Span<const int32_t> b) {
  const size_t both = std::min(a.size(), b.size());
  TextComparison comparison{.tokens = static_cast<int>(std::max(a.size(), b.size()))};
  int equal = 0;
  for (size_t i = 0; i < both; ++i) equal += a[i] == b[i];
  const auto parted = std::mismatch(a.begin(), a.begin() + both, b.begin());
  comparison.first_difference = static_cast<int>(parted.first - a.begin());
  comparison.equal_share =
      comparison.tokens > 0 ? static_cast<double>(equal) / comparison.tokens : 1.0;
  return comparison;
}

}  // namespace latentd
