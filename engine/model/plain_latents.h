#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/latents_file.h"

namespace latentd {

// A plain quantised cache as latents, made from the weights alone: every KV head keeps its full
// rank, turned by a Hadamard matrix H that spreads its dims' energy evenly (k_down = H W, k_up =
// H^T), in symmetric codes of `bits` bits, with 4 exact sinks. Biases stay out of the codes, as in
// all latents. The latents own their factors: as many numbers as the k and v projections have, in
// 16 bits, made on `threads` threads. INVALID_ARGUMENT unless `bits` is 8, 4, 3 or 2; NOT_FOUND
// names a missing tensor.
absl::StatusOr<std::unique_ptr<Latents>> MakePlainLatents(const Checkpoint& checkpoint, int bits,
                                                          int threads = 1);

}  // namespace latentd
