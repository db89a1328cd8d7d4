#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace latentd {

// What a compression did, for the files beside its latents.
struct CompressionReport {
  struct Plane {
    int latent_heads = 0;
    int dims = 0;  // of a latent head
    std::string codec;
    double bytes_per_token = 0;
    double energy_kept = 0;  // share of E|W x|^2, before codes
  };
  struct Layer {
    Plane k, v;
  };

  std::string model;
  std::string method;
  std::string calibration;  // on what
  int windows = 0;
  int window_tokens = 0;
  std::vector<Layer> layers;
  double bytes_per_token = 0;       // all scales counted
  double full_bytes_per_token = 0;  // of the uncompressed 16-bit cache
  double seconds = 0;

  double ratio() const { return full_bytes_per_token / bytes_per_token; }
};

// Writes `<latents path>.report.json` for programs and `<latents path>.report.md` for people, each
// whole or not at all.
absl::Status WriteReport(const std::string& latents_path, const CompressionReport& report);

}  // namespace latentd
