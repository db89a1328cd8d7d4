#pragma once

#include <cstdint>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/weight_binder.h"
#include "engine/model/families.h"
#include "engine/model/model_config.h"

namespace latentd {

// Every weight of the family's table in the config's shapes, for measuring speed and memory without
// a model's files: DummyNumbers, and ones for the weights of norms, so that activations stay finite
// through all layers. Takes the memory of the largest weight, in bf16; RESOURCE_EXHAUSTED names it
// when the machine has less.
absl::StatusOr<BoundWeights> DummyWeights(const Family& family, const ModelConfig& config,
                                          uint64_t seed);

// A token for each byte.
TokenizerSource DummyTokenizer();

}  // namespace latentd
