#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "absl/status/statusor.h"
#include "engine/model/families.h"
#include "engine/model/model_config.h"

namespace latentd {

// The family that config.json's "architectures" names.
absl::StatusOr<const Family*> FamilyOfHfConfig(const nlohmann::json& config);

// The config of a Hugging Face model of `family`, validated. `generation` is
// generation_config.json, or null.
absl::StatusOr<ModelConfig> ReadHfConfig(const nlohmann::json& config,
                                         const nlohmann::json& generation, const Family& family);

}  // namespace latentd
