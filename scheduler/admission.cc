#include "scheduler/admission.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "kernels/cache_layout.h"
#include "scheduler/block_pool.h"
#include "scheduler/scheduler_config.h"

namespace latentd {
namespace {

absl::Status AtLeast(const char* name, int64_t value, int64_t least) {
  if (value >= least) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, ", the least allowed is ", least));
}

absl::Status CheckIds(const char* name, const std::vector<int32_t>& ids, int vocab_size) {
  for (size_t i = 0; i < ids.size(); ++i) {
    if (ids[i] >= 0 && ids[i] < vocab_size) continue;
    return absl::InvalidArgumentError(absl::StrCat(
        name, "[", i, "] is ", ids[i], ", the vocabulary has ids 0 to ", vocab_size - 1));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const SchedulerConfig& config) {
  RETURN_IF_ERROR(AtLeast("max_batch_tokens", config.max_batch_tokens, 1));
  RETURN_IF_ERROR(AtLeast("max_sequences", config.max_sequences, 1));
  if (config.max_sequences > config.max_batch_tokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_sequences is ", config.max_sequences, ", but max_batch_tokens is only ",
                     config.max_batch_tokens, ": each running sequence needs a row of every step"));
  }
  RETURN_IF_ERROR(AtLeast("max_queued_requests", config.max_queued_requests, 0));
  return AtLeast("max_queued_tokens", config.max_queued_tokens, 1);
}

absl::Status CheckRequest(const Request& request, const EngineInfo& info) {
  LATENTD_CHECK(request.sink != nullptr);
  if (request.id.empty()) return absl::InvalidArgumentError("the request id is empty");
  const int64_t prompt_tokens = static_cast<int64_t>(request.prompt.size());
  RETURN_IF_ERROR(AtLeast("number of prompt tokens", prompt_tokens, 1));
  RETURN_IF_ERROR(AtLeast("max_new_tokens", request.max_new_tokens, 1));
  RETURN_IF_ERROR(AtLeast("min_new_tokens", request.min_new_tokens, 0));
  if (request.min_new_tokens > request.max_new_tokens) {
    return absl::InvalidArgumentError(absl::StrCat("min_new_tokens is ", request.min_new_tokens,
                                                   ", max_new_tokens only ",
                                                   request.max_new_tokens));
  }
  const int64_t tokens = prompt_tokens + request.max_new_tokens;
  if (tokens > info.max_context) {
    return absl::InvalidArgumentError(
        absl::StrCat("prompt of ", prompt_tokens, " and max_tokens of ", request.max_new_tokens,
                     " make ", tokens, " tokens, the context holds ", info.max_context));
  }
  // The last token is never computed.
  const int64_t blocks = MostBlocksFor(tokens - 1, info.sliding_window);
  if (blocks > info.num_blocks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "prompt of ", prompt_tokens, " and max_tokens of ", request.max_new_tokens, " need ",
        blocks, " cache blocks of ", kBlockTokens, " tokens, the pool has ", info.num_blocks));
  }
  RETURN_IF_ERROR(CheckIds("prompt", request.prompt, info.vocab_size));
  RETURN_IF_ERROR(CheckIds("stop_token_ids", request.stop_token_ids, info.vocab_size));
  return Validate(request.sampling);
}

int MostNewTokens(const EngineInfo& info, int64_t prompt_tokens) {
  int64_t tokens = info.max_context;
  if (MostBlocksFor(tokens - 1, info.sliding_window) > info.num_blocks) {
    tokens = std::min(tokens, info.num_blocks * kBlockTokens + 1);
  }
  return static_cast<int>(std::max<int64_t>(0, tokens - prompt_tokens));
}

}  // namespace latentd
