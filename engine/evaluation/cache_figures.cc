#include "engine/evaluation/cache_figures.h"

#include "absl/strings/str_format.h"

namespace latentd {

double RatioAt(const EngineInfo& info, int tokens) {
  return tokens * info.full_bytes_per_token /
         (tokens * info.bytes_per_token + info.bytes_per_sequence);
}

void AddCacheFigures(const EngineInfo& info, int window, nlohmann::ordered_json* json) {
  json->update({{"cache", info.cache_name},
                {"bytes_per_token", info.bytes_per_token},
                {"bytes_per_sequence", info.bytes_per_sequence},
                {"full_bytes_per_token", info.full_bytes_per_token},
                {"ratio", info.full_bytes_per_token / info.bytes_per_token},
                {"ratio_at_window", RatioAt(info, window)}});
}

std::string CacheFigures(const EngineInfo& info, int window) {
  return absl::StrFormat(
      "cache: %s, %.1f bytes per token and %.0f per sequence (full 16-bit %.0f; ratio %.2f, %.2f "
      "at %d tokens)",
      info.cache_name, info.bytes_per_token, info.bytes_per_sequence, info.full_bytes_per_token,
      info.full_bytes_per_token / info.bytes_per_token, RatioAt(info, window), window);
}

}  // namespace latentd
