#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/compressor/palu.h"
#include "engine/compressor/report.h"
#include "engine/open_model.h"

namespace latentd {

struct CompressOptions {
  ModelOptions model;                    // its model, device and threads
  std::string out;                       // the latents file to write
  std::vector<std::string> calibration;  // text files; empty: the model writes its text itself
  int windows = 32;
  int window_tokens = 512;
  uint64_t seed = 0;  // of the text that the model writes
  std::string group;  // as HeadsPerGroup reads it
  PaluOptions palu;   // but for heads_per_group, which `group` says
};

// Called now and then with what is being done and the share of it that is, in [0, 1]. An error ends
// the work and comes back from Compress.
using CompressProgress = std::function<absl::Status(std::string_view what, double share)>;

// Calibrates, factorises and writes the latents file and then its reports. On one machine the same
// options give the same latents, byte for byte, for every number of threads. Until the last factor
// is computed nothing is written, then each file whole or not at all; INVALID_ARGUMENT names the
// flag and both numbers.
absl::StatusOr<CompressionReport> Compress(CompressOptions options,
                                           const CompressProgress& progress);

}  // namespace latentd
