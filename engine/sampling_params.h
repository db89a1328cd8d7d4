#pragma once

#include <cstdint>

#include "absl/status/status.h"

namespace latentd {

// How one request's tokens are drawn. Plain data; defaults draw from the model's own distribution.
struct SamplingParams {
  float temperature = 1.0f;         // [0, 100]; 0: greedy
  int top_k = 0;                    // 0: all
  float top_p = 1.0f;               // (0, 1]
  float min_p = 0.0f;               // [0, 1]
  float repetition_penalty = 1.0f;  // (0, 100], over prompt and output
  float presence_penalty = 0.0f;    // [-100, 100], over output
  float frequency_penalty = 0.0f;   // [-100, 100], over output
  uint64_t seed = 0;                // draws are a function of (seed, position)
  int num_logprobs = -1;            // -1: none; k in [0, 20]: the drawn token's and the k likeliest
};

// INVALID_ARGUMENT naming the field, its value and the allowed range. NaN is never allowed.
absl::Status Validate(const SamplingParams& params);

}  // namespace latentd
