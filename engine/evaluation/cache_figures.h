#pragma once

#include <string>

#include "engine/engine.h"
#include "nlohmann/json.hpp"

namespace latentd {

// Uncompressed over stored bytes of a sequence of `tokens` tokens, what it keeps once counted.
double RatioAt(const EngineInfo& info, int tokens);

// Adds what the cache is and what it takes: cache, bytes_per_token, bytes_per_sequence,
// full_bytes_per_token, ratio, ratio_at_window.
void AddCacheFigures(const EngineInfo& info, int window, nlohmann::ordered_json* json);

// The same in words, one line.
std::string CacheFigures(const EngineInfo& info, int window);

}  // namespace latentd
