#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/compressor/mixed.h"
#include "engine/compressor/palu.h"
#include "engine/compressor/report.h"
#include "engine/open_model.h"

namespace latentd {

struct CompressOptions {
  ModelOptions model;                    // its model, device and threads
  std::string out;                       // the latents file to write
  std::vector<std::string> calibration;  // text files; empty: the model writes its text itself
  int windows = 48;
  int window_tokens = 0;  // 0: 1024, or the model's context if that is less
  uint64_t seed = 0;      // of the text that the model writes and of the drawn labels
  // Where the measured statistics stay, for other methods and budgets on the same text. Empty: in
  // "<out>.partial" until the latents are written.
  std::string statistics;
  std::string group;  // as HeadsPerGroup reads it
  // But for heads_per_group, which `group` says.
  std::variant<MixedOptions, PaluOptions> method;
};

// Called now and then with what is being done and the share of it that is, in [0, 1]. An error ends
// the work and comes back from Compress; "; the same command goes on from here" is added to a
// CANCELLED where some work is kept.
using CompressProgress = std::function<absl::Status(std::string_view what, double share)>;

// What the statistics and the bases take in memory, in bytes, beside the model's weights and a
// window's activations. `options` name the method's heads per group.
int64_t WorkBytes(const CompressOptions& options, const ModelConfig& config);

// INVALID_ARGUMENT names a flag that is missing or wrong whatever the model: known before any work.
absl::Status ValidateFlags(const CompressOptions& options);

// Calibrates, factorises, measures what that costs on two windows that the statistics have not
// seen, through the paged cache, and writes the latents file and then its reports. On one machine
// the same options and number of threads give the same latents, byte for byte, interrupted and
// taken up again or not. Each file is written whole or not at all. INVALID_ARGUMENT names the flag
// and both numbers; RESOURCE_EXHAUSTED when the machine has less memory than WorkBytes.
absl::StatusOr<CompressionReport> Compress(CompressOptions options,
                                           const CompressProgress& progress);

}  // namespace latentd
