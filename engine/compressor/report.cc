#include "engine/compressor/report.h"

#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "base/status_macros.h"
#include "engine/checkpoint/atomic_file.h"
#include "nlohmann/json.hpp"

namespace latentd {
namespace {

nlohmann::ordered_json ToJson(const CompressionReport::Plane& plane) {
  return {{"latent_heads", plane.latent_heads},
          {"dims", plane.dims},
          {"codec", plane.codec},
          {"bytes_per_token", plane.bytes_per_token},
          {"energy_kept", plane.energy_kept}};
}

std::string JsonText(const CompressionReport& report) {
  nlohmann::ordered_json json = {{"model", report.model},
                                 {"method", report.method},
                                 {"calibration", report.calibration},
                                 {"windows", report.windows},
                                 {"window_tokens", report.window_tokens},
                                 {"bytes_per_token", report.bytes_per_token},
                                 {"full_bytes_per_token", report.full_bytes_per_token},
                                 {"ratio", report.ratio()},
                                 {"seconds", report.seconds}};
  for (const CompressionReport::Layer& layer : report.layers) {
    json["layers"].push_back({{"k", ToJson(layer.k)}, {"v", ToJson(layer.v)}});
  }
  return json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

std::string MarkdownText(const CompressionReport& report) {
  std::string text = absl::StrFormat(
      "# Latents of %s\n\n%s; calibrated on %s, %d windows of %d tokens, in %.0f s.\n\n"
      "%.1f bytes per token, all scales counted; the uncompressed 16-bit cache takes %.0f: a ratio "
      "of %.2f.\n\n"
      "Energy is the share of E|W x|^2 over the calibration tokens that the factors keep, before "
      "codes.\n\n"
      "| layer | K heads x dims, codec | K bytes | K energy | V heads x dims, codec | V bytes | V "
      "energy |\n"
      "|---|---|---|---|---|---|---|\n",
      report.model, report.method, report.calibration, report.windows, report.window_tokens,
      report.seconds, report.bytes_per_token, report.full_bytes_per_token, report.ratio());
  for (size_t l = 0; l < report.layers.size(); ++l) {
    const auto& [k, v] = report.layers[l];
    absl::StrAppendFormat(&text, "| %d | %d x %d %s | %.1f | %.4f | %d x %d %s | %.1f | %.4f |\n",
                          l, k.latent_heads, k.dims, k.codec, k.bytes_per_token, k.energy_kept,
                          v.latent_heads, v.dims, v.codec, v.bytes_per_token, v.energy_kept);
  }
  return text;
}

absl::Status WriteText(const std::string& path, const std::string& text) {
  ASSIGN_OR_RETURN(const std::unique_ptr<AtomicFile> file, AtomicFile::Create(path));
  RETURN_IF_ERROR(file->Write(text));
  return file->Publish();
}

}  // namespace

absl::Status WriteReport(const std::string& latents_path, const CompressionReport& report) {
  RETURN_IF_ERROR(WriteText(latents_path + ".report.json", JsonText(report)));
  return WriteText(latents_path + ".report.md", MarkdownText(report));
}

}  // namespace latentd
