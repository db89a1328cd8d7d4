#pragma once

#include <string>

#include "google/protobuf/message.h"
#include "nlohmann/json_fwd.hpp"

namespace latentd {

// A message as JSON under its own field names, every field there, numbers as numbers (protobuf's
// own printer writes 64-bit ones as strings). Bytes that are no UTF-8 become U+FFFD.
nlohmann::ordered_json ToJson(const google::protobuf::Message& message);

// One line.
std::string JsonLine(const nlohmann::ordered_json& json);

}  // namespace latentd
