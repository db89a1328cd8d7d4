#pragma once

#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace latentd {

// The JSON document `text`, which messages call `name`. INVALID_ARGUMENT when it is no JSON, nests
// deeper than 64, or has an object with the same key twice.
absl::StatusOr<nlohmann::json> ParseJson(std::string_view text, std::string_view name);

// Reads one member of a JSON object; leaves `out` alone when it is absent or null. INVALID_ARGUMENT
// naming `name` and the key when it has another type or does not fit.
absl::Status ReadField(const nlohmann::json& object, const char* key, std::string_view name,
                       int& out);
absl::Status ReadField(const nlohmann::json& object, const char* key, std::string_view name,
                       float& out);
absl::Status ReadField(const nlohmann::json& object, const char* key, std::string_view name,
                       bool& out);
absl::Status ReadField(const nlohmann::json& object, const char* key, std::string_view name,
                       std::string& out);
absl::Status ReadField(const nlohmann::json& object, const char* key, std::string_view name,
                       std::vector<float>& out);
// An integer or a list of integers.
absl::Status ReadField(const nlohmann::json& object, const char* key, std::string_view name,
                       std::vector<int32_t>& out);

// Whether the object has the key with a value other than null.
bool HasField(const nlohmann::json& object, const char* key);

// A number that is a whole one in [0, 2^62], or nullopt.
std::optional<int64_t> AsCount(const nlohmann::json& value);

}  // namespace latentd
