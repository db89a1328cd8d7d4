#include "server/warm_up.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace latentd {
namespace {

constexpr int kPromptTokens = 16;
constexpr int kNewTokens = 4;

// Computes the tokens from `begin` on, in block 0, and appends the next one.
absl::Status AppendNext(Engine* engine, int begin, std::vector<int32_t>* tokens) {
  const int end = static_cast<int>(tokens->size());
  Batch batch{.max_blocks = 1};
  const int32_t block = 0;
  const int row = AppendRows(&batch, *tokens, begin, end, absl::MakeConstSpan(&block, 1), 0);
  batch.samples.push_back({.row = row, .params = {.temperature = 0}, .position = end});
  ASSIGN_OR_RETURN(const StepOutput output, engine->Step(batch));
  if (!output.samples[0].ok) {
    return absl::InternalError(
        absl::StrCat("the model gave no usable logits at position ", end, " of the warm-up"));
  }
  tokens->push_back(output.samples[0].token_id);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<WarmUpTimes> WarmUp(Engine* engine, Clock* clock) {
  const EngineInfo& info = engine->info();
  std::vector<int32_t> tokens;
  for (int i = 0; i < std::clamp(info.max_context - kNewTokens, 1, kPromptTokens); ++i) {
    tokens.push_back(i % info.vocab_size);
  }
  const absl::Time begin = clock->Now();
  RETURN_IF_ERROR(AppendNext(engine, 0, &tokens));
  const absl::Time first_token = clock->Now();
  for (int i = 1; i < kNewTokens && static_cast<int>(tokens.size()) <= info.max_context; ++i) {
    RETURN_IF_ERROR(AppendNext(engine, static_cast<int>(tokens.size()) - 1, &tokens));
  }
  return WarmUpTimes{.first_token = first_token - begin, .total = clock->Now() - begin};
}

}  // namespace latentd
