#pragma once

#include <string>
#include <vector>

#include "absl/status/status.h"

namespace latentd {

struct CompressionReport {
  struct Plane {
    int latent_heads = 0, dims = 0;
    std::string codec;
    double bytes_per_token = 0;
    double energy_kept = 0;  // share of E|W x|^2
  };
  struct Layer {
    Plane k, v;
  };
  std::string model, method, calibration;
  int windows = 0, window_tokens = 0;
  std::vector<Layer> layers;
  double bytes_per_token = 0;
  double full_bytes_per_token = 0;
  double seconds = 0;
};

// Writes `<latents path>.report.json` for programs and `<latents path>.report.md` for people.
absl::Status WriteReport(const std::string& latents_path, const CompressionReport& report);

}  // namespace latentd
