#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/compressor/plane_factors.h"
#include "engine/compressor/statistics.h"

namespace latentd {

// Our own method: a basis weighted by the loss from both sides, bits given to blocks of dims by one
// budget over all layers and planes, exact sinks, means taken out.
struct MixedOptions {
  double bytes_per_token = 0;               // of the whole cache, all scales counted
  std::vector<int> bit_widths = {8, 4, 2};  // from the set 8, 4, 3, 2, descending
  int block_dims = 32;                      // dims that share a width: 16 or 32
  int heads_per_group = 0;
  int sinks = 4;
  bool own_page = true;
  double shrinkage = 0.05;  // of F towards its mean diagonal, in [0, 1]
};

// What the allocation decided for one plane, and what it predicts.
struct PlaneAllocation {
  std::vector<Segment> segments;  // of every latent head; widths never increase
  double predicted_kl = 0;        // nats per predicted token
};

// The factors of every layer. INVALID_ARGUMENT when the budget is below the smallest or above the
// largest cache that the widths allow; names the flag and both numbers.
absl::StatusOr<std::vector<LayerFactors>> CompressMixed(
    const Checkpoint& checkpoint, const std::vector<LayerStatistics>& statistics,
    const MixedOptions& options, const Progress& progress);

}  // namespace latentd
