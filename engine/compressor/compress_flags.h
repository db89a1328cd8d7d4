#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "base/command_line.h"
#include "engine/compressor/compress.h"

namespace latentd {

// The flags of latent-compress. A preset says everything about the method, so it stands alone:
// flags that would change the method beside it are refused. Without any of them it is "balanced".
//
//   preset    ratio  perplexity  all: mixed, 8/4/2 bits in blocks of 32, 4 exact sinks, own page in
//   16 quality   4      + .1 %      bits balanced  5.3    + .5 % small     7.7    + 2 %
//
// The perplexity is that of SmolLM2-135M in docs/results/quality-rivals.md.
class CompressFlags {
 public:
  explicit CompressFlags(CommandLine* flags);
  CompressFlags(const CompressFlags&) = delete;
  CompressFlags& operator=(const CompressFlags&) = delete;

  // What was asked for, after parsing. INVALID_ARGUMENT names the flags that do not go together, or
  // the flag and what is allowed.
  absl::StatusOr<CompressOptions> Options() const;
  bool json() const { return json_; }

 private:
  absl::Status CheckTogether(const std::string& method) const;
  absl::StatusOr<MixedOptions> Mixed() const;
  absl::StatusOr<PaluOptions> Palu() const;
  // The flags of the list that were given.
  std::vector<std::string> Given(const std::vector<std::string>& names) const;

  const CommandLine* const flags_;
  CompressOptions options_;
  std::string preset_ = "balanced";
  std::string method_ = "mixed";
  std::optional<double> ratio_, bytes_per_token_, k_share_, k_dims_;
  std::string bit_widths_ = "8,4,2";
  std::string own_page_ = "16";
  std::string allocation_ = "uniform";
  std::optional<int64_t> sinks_;
  MixedOptions mixed_;
  PaluOptions palu_;
  std::vector<std::string> calibration_;
  int64_t seed_ = 0;
  bool json_ = false;
};

}  // namespace latentd
