#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "engine/checkpoint/latents_file.h"
#include "engine/model/model_config.h"

namespace latentd {

// Latents of random factors (DummyNumbers), for measuring speed and memory: `shares` is "K/V", the
// percent of the dims of a group's KV heads that its latents of keys and of values have, "50/50".
// In 4 bits, with the groups, exact sinks and own page that latent-compress chooses by default:
// groups of the largest divisor of the KV heads up to 4, 4 sinks. INVALID_ARGUMENT for other text,
// or shares outside of (0, 100]; RESOURCE_EXHAUSTED when the machine's memory cannot hold a factor.
absl::StatusOr<std::unique_ptr<Latents>> MakeDummyLatents(const ModelConfig& config,
                                                          const std::string& shares,
                                                          uint64_t seed = 1);

}  // namespace latentd
