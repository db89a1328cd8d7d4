#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/evaluation/divergence.h"
#include "kernels/cache_layout.h"

namespace latentd {

// What a compression did, for the files beside its latents.
struct CompressionReport {
  struct Plane {
    CachePlane layout;
    int full_dims = 0;           // of a latent head, uncompressed
    std::vector<double> energy;  // by dim of a latent head, falling, summed over the heads
    double energy_kept = 0;      // share of it that lies in the latent's dims, before codes
    double predicted_kl = 0;     // nats per predicted token

    double bytes_per_token() const {
      return static_cast<double>(layout.plane_bytes()) / kBlockTokens;
    }
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
  double bytes_per_token = 0;  // all scales counted
  // What it was allowed to be; nullopt: the method has no such budget.
  std::optional<double> allowed_bytes_per_token;
  double bytes_per_sequence = 0;    // once: exact sinks and the page being filled
  double full_bytes_per_token = 0;  // of the uncompressed 16-bit cache
  // From the Fisher matrices, of cuts and codes as the allocation weighs them; nullopt: the method
  // predicts none.
  std::optional<double> predicted_kl;
  DivergenceResult measured;  // through the paged cache, on windows that the statistics did not see
  double seconds = 0;
  bool resumed = false;    // an earlier run measured a part, in time of its own
  int64_t peak_bytes = 0;  // of the host's memory at once, pages of the model's file among them

  double ratio() const { return full_bytes_per_token / bytes_per_token; }
  // " of the 768.0 allowed (ratio 30.00)" where the cache came out more than 1 % smaller, else "".
  std::string OfTheAllowed() const;
  // Of a sequence of so many tokens, what it keeps once counted.
  double ratio_at(int64_t tokens) const;
};

// Writes `<latents path>.report.json` for programs, and `<latents path>.report.md` with
// `<latents path>.report.svg` for people, each whole or not at all.
absl::Status WriteReport(const std::string& latents_path, const CompressionReport& report);

}  // namespace latentd
