#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "engine/sampling_params.h"
#include "kernels/params.h"

namespace latentd {

enum class FinishReason : uint8_t { kStop, kLength, kCancelled, kDeadline, kError };
const char* Name(FinishReason reason);  // "stop", "length", ...

// What a request is told when it ends.
struct FinishInfo {
  FinishReason reason = FinishReason::kError;
  absl::Status status;  // not OK only for kError
  int prompt_tokens = 0;
  int cached_tokens = 0;  // of the prompt, taken from the prefix cache
  int generated_tokens = 0;
  int preemptions = 0;
  int64_t cache_bytes = 0;       // the most that the sequence held: blocks and a seat
  int64_t full_cache_bytes = 0;  // of the same tokens in the uncompressed 16-bit cache
  absl::Duration queue_time;     // arrival to first scheduled
  absl::Duration prefill_time;   // first scheduled to first token
  absl::Duration decode_time;    // first token to last
};

// The status code of an RPC that ends like this.
absl::StatusCode CodeOf(const FinishInfo& info);

// One drawn token.
struct GeneratedToken {
  int32_t id = -1;
  float logprob = 0.0f;
  std::vector<TokenLogprob> top_logprobs;
};

// Where a request's tokens go. Called by the serve loop's thread alone; must neither block nor call
// back into it.
class TokenSink {
 public:
  virtual ~TokenSink() = default;
  virtual void OnTokens(absl::Span<const GeneratedToken> tokens) = 0;
  virtual void OnFinish(const FinishInfo& info) = 0;  // exactly once, last
};

// One generation asked for. Immutable once made.
struct Request {
  std::string id;
  std::vector<int32_t> prompt;  // 1 token or more
  SamplingParams sampling;
  int max_new_tokens = 0;               // 1 or more
  int min_new_tokens = 0;               // stop ids are not drawn before
  std::vector<int32_t> stop_token_ids;  // a drawn stop id ends the generation and is reported
  absl::Time arrival;
  absl::Time deadline = absl::InfiniteFuture();
  std::shared_ptr<TokenSink> sink;
};

}  // namespace latentd
