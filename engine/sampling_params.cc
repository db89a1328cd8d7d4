#include "engine/sampling_params.h"

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace latentd {
namespace {

// NaN is in no range.
template <typename T>
absl::Status InRange(const char* name, T value, T low, T high) {
  if (low <= value && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(name, " is ", value, ", the range is ", low, " to ", high));
}

}  // namespace

absl::Status Validate(const SamplingParams& params) {
  RETURN_IF_ERROR(InRange("temperature", params.temperature, 0.0f, 100.0f));
  if (params.top_k < 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_k is ", params.top_k, ", the least is 0 (all)"));
  }
  if (!(params.top_p > 0.0f && params.top_p <= 1.0f)) {
    return absl::InvalidArgumentError(
        absl::StrCat("top_p is ", params.top_p, ", the range is above 0 to 1"));
  }
  RETURN_IF_ERROR(InRange("min_p", params.min_p, 0.0f, 1.0f));
  if (!(params.repetition_penalty > 0.0f && params.repetition_penalty <= 100.0f)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "repetition_penalty is ", params.repetition_penalty, ", the range is above 0 to 100"));
  }
  RETURN_IF_ERROR(InRange("presence_penalty", params.presence_penalty, -100.0f, 100.0f));
  RETURN_IF_ERROR(InRange("frequency_penalty", params.frequency_penalty, -100.0f, 100.0f));
  return InRange("num_logprobs", params.num_logprobs, -1, 20);
}

}  // namespace latentd
