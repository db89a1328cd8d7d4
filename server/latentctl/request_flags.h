#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/command_line.h"
#include "latentd/v1/generation.pb.h"

namespace latentd {

// The flags that say how to generate; only those that are given enter the request. The server knows
// the ranges, and its errors name the field.
class RequestFlags {
 public:
  void AddTo(CommandLine* flags);
  void Apply(v1::GenerateRequest* request) const;

  static constexpr FlagRange kInt32 = {.min = -0x1p31, .max = 0x1p31 - 1};  // of the fields

 private:
  std::optional<int64_t> max_tokens_, min_tokens_, top_k_, seed_;
  std::optional<double> temperature_, top_p_, min_p_, repetition_penalty_, presence_penalty_,
      frequency_penalty_;
  std::vector<std::string> stop_;
  bool ignore_eos_ = false, include_stop_ = false;
};

// --target, with its default.
void AddTargetFlag(CommandLine* flags, std::string* target);

// The text, or of "-" all of stdin.
std::string TextOrInput(const std::string& text);

// "12,7, 99" as ids. INVALID_ARGUMENT names the flag and what is no number.
absl::StatusOr<std::vector<int64_t>> ParseIds(absl::string_view flag, absl::string_view text);

}  // namespace latentd
