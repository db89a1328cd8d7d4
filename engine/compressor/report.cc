#include "engine/compressor/report.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/command_line.h"
#include "base/status_macros.h"
#include "engine/checkpoint/atomic_file.h"
#include "engine/compressor/svg_figure.h"
#include "engine/evaluation/windows.h"
#include "nlohmann/json.hpp"

namespace latentd {
namespace {

using Json = nlohmann::ordered_json;
using Plane = CompressionReport::Plane;
using Layer = CompressionReport::Layer;

constexpr int64_t kLengths[] = {2048, 8192, 65536};
constexpr const char* kPlaneColours[] = {"#4477aa", "#ee8866"};  // K, V
constexpr const char* kCutColour = "#dddddd";

double Rounded(double value) {
  if (value == 0) return 0;
  const double unit = std::pow(10.0, std::floor(std::log10(std::abs(value))) - 3);
  return std::round(value / unit) * unit;
}

Json ToJson(const Plane& plane) {
  Json segments = Json::array();
  for (const Segment& segment : plane.layout.segments) {
    segments.push_back(Json::array({segment.dims, Info(segment.codec).name}));
  }
  Json energy = Json::array();
  for (const double value : plane.energy) energy.push_back(Rounded(value));
  return {{"latent_heads", plane.layout.latent_heads},
          {"full_dims", plane.full_dims},
          {"dims", plane.layout.dims()},
          {"segments", segments},
          {"bytes_per_token", plane.bytes_per_token()},
          {"energy_kept", plane.energy_kept},
          {"predicted_kl", plane.predicted_kl},
          {"energy", energy}};
}

std::string JsonText(const CompressionReport& report) {
  Json ratios = Json::object();
  for (const int64_t length : kLengths) ratios[absl::StrCat(length)] = report.ratio_at(length);
  Json json = {{"model", report.model},
               {"method", report.method},
               {"calibration", report.calibration},
               {"windows", report.windows},
               {"window_tokens", report.window_tokens},
               {"bytes_per_token", report.bytes_per_token},
               {"bytes_per_sequence", report.bytes_per_sequence},
               {"full_bytes_per_token", report.full_bytes_per_token},
               {"ratio", report.ratio()},
               {"ratio_at", ratios},
               {"measured",
                {{"tokens", report.measured.tokens},
                 {"kl_mean", report.measured.kl_mean},
                 {"kl_standard_error", report.measured.kl_standard_error},
                 {"kl_p99", report.measured.kl_p99},
                 {"top1", report.measured.top1},
                 {"perplexity", report.measured.perplexity},
                 {"reference_perplexity", report.measured.reference_perplexity}}},
               {"seconds", report.seconds},
               {"resumed", report.resumed},
               {"peak_bytes", report.peak_bytes}};
  if (report.predicted_kl.has_value()) json["predicted_kl"] = *report.predicted_kl;
  if (report.allowed_bytes_per_token.has_value()) {
    json["allowed_bytes_per_token"] = *report.allowed_bytes_per_token;
  }
  for (const Layer& layer : report.layers) {
    json["layers"].push_back({{"k", ToJson(layer.k)}, {"v", ToJson(layer.v)}});
  }
  return json.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

// "64 int4 + 96 int2"
std::string SegmentsText(const Plane& plane) {
  return absl::StrJoin(plane.layout.segments, " + ", [](std::string* out, const Segment& segment) {
    absl::StrAppend(out, segment.dims, " ", Info(segment.codec).name);
  });
}

std::string PlaneCells(const Plane& plane, bool is_predicted) {
  std::string cells =
      absl::StrFormat(" %d of %d: %s | %.1f | %.4f |", plane.layout.dims(), plane.full_dims,
                      SegmentsText(plane), plane.bytes_per_token(), plane.energy_kept);
  if (is_predicted) absl::StrAppendFormat(&cells, " %.6f |", plane.predicted_kl);
  return cells;
}

std::string TotalsText(const CompressionReport& report) {
  const DivergenceResult& measured = report.measured;
  std::string text = absl::StrFormat(
      "# Latents of %s\n\n%s; calibrated on %s, %s tokens, in %.0f s%s.\n\n"
      "%.1f bytes per token%s, all scales counted; the uncompressed 16-bit cache takes %.0f: a "
      "ratio of %.2f. A sequence keeps %s more while it is at work (exact first tokens, the page "
      "that is being filled).\n\n"
      "| tokens of a sequence | cache | uncompressed | ratio |\n|---|---|---|---|\n",
      report.model, report.method, report.calibration,
      WindowsOf(report.windows, report.window_tokens), report.seconds,
      report.resumed ? " after what an earlier run had measured" : "", report.bytes_per_token,
      report.OfTheAllowed(), report.full_bytes_per_token, report.ratio(),
      FormatBytes(report.bytes_per_sequence));
  for (const int64_t length : kLengths) {
    const double full = report.full_bytes_per_token * static_cast<double>(length);
    absl::StrAppendFormat(&text, "| %d | %s | %s | %.2f |\n", length,
                          FormatBytes(full / report.ratio_at(length)), FormatBytes(full),
                          report.ratio_at(length));
  }
  absl::StrAppendFormat(
      &text,
      "\nMeasured through the paged cache on %d tokens that the calibration did not see: KL to the "
      "uncompressed cache %.5f +- %.5f nats per token, 99 %% below %.3f; the likeliest token is "
      "the same for %.1f %%; perplexity %.3f instead of %.3f.\n",
      measured.tokens, measured.kl_mean, measured.kl_standard_error, measured.kl_p99,
      100 * measured.top1, measured.perplexity, measured.reference_perplexity);
  if (report.predicted_kl.has_value()) {
    absl::StrAppendFormat(&text, "\nPredicted from the Fisher matrices, to second order: %.5f.\n",
                          *report.predicted_kl);
    if (measured.kl_mean > 1.5 * *report.predicted_kl) {
      absl::StrAppend(&text,
                      "What was measured is more: above about 0.01 the prediction is optimistic, "
                      "and so it is after little calibration text.\n");
    }
  }
  return text;
}

std::string MarkdownText(const std::string& figure, const CompressionReport& report) {
  const bool is_predicted = report.predicted_kl.has_value();
  std::string text = TotalsText(report);
  absl::StrAppend(
      &text, "\n![Energy, bits, bytes and predicted loss per layer](", figure, ")\n\n",
      "Energy is the share that the dims hold of ",
      is_predicted ? "the loss-weighted energy E|F^(1/2) y|^2" : "the energy E|y|^2",
      " of the keys or values y over the calibration tokens, before codes.\n\n| layer |");
  for (const char* plane : {"K", "V"}) {
    absl::StrAppend(&text, " ", plane, " dims and their codes | ", plane, " bytes | ", plane,
                    " energy |");
    if (is_predicted) absl::StrAppend(&text, " ", plane, " predicted KL |");
  }
  absl::StrAppend(&text, is_predicted ? "\n|---|---|---|---|---|---|---|---|---|\n"
                                      : "\n|---|---|---|---|---|---|---|\n");
  for (size_t l = 0; l < report.layers.size(); ++l) {
    absl::StrAppend(&text, "| ", l, " |", PlaneCells(report.layers[l].k, is_predicted),
                    PlaneCells(report.layers[l].v, is_predicted), "\n");
  }
  return text;
}

Chart EnergyChart(const CompressionReport& report, Plane Layer::*plane, const char* name) {
  Chart chart{.title = absl::StrCat(name, ": energy of the dims (first layer dark, last light)"),
              .x_label = "dim of a latent head",
              .y_label = "share of the plane's energy"};
  for (size_t l = 0; l < report.layers.size(); ++l) {
    std::vector<double> shares = (report.layers[l].*plane).energy;
    double sum = 0;
    for (const double value : shares) sum += value;
    for (double& value : shares) value /= sum;
    chart.series.push_back({.colour = ScaleColour(static_cast<double>(l) /
                                                  std::max<size_t>(1, report.layers.size() - 1)),
                            .values = shares});
  }
  return chart;
}

// Dims of a latent head by what a value takes, the widest at the bottom.
Chart BitsChart(const CompressionReport& report, Plane Layer::*plane, const char* name) {
  Chart chart{.title = absl::StrCat(name, ": dims by bits"),
              .x_label = "layer",
              .y_label = "dims of a latent head"};
  std::map<int, std::vector<double>, std::greater<>> dims;
  std::vector<double> cut;
  for (size_t l = 0; l < report.layers.size(); ++l) {
    const Plane& p = report.layers[l].*plane;
    for (const Segment& segment : p.layout.segments) {
      std::vector<double>& row = dims[Info(segment.codec).bits];
      row.resize(report.layers.size());
      row[l] += segment.dims;
    }
    cut.push_back(p.full_dims - p.layout.dims());
  }
  for (const auto& [bits, values] : dims) {
    chart.series.push_back({.name = absl::StrCat(bits, " bits"),
                            .colour = ScaleColour(1.5 - std::log2(bits) / 2),
                            .values = values});
  }
  chart.series.push_back({.name = "cut", .colour = kCutColour, .values = cut});
  return chart;
}

Chart PlanesChart(const CompressionReport& report, const char* title, const char* y_label,
                  double (*value)(const Plane&)) {
  Chart chart{.title = title, .x_label = "layer", .y_label = y_label};
  chart.series = {{.name = "K", .colour = kPlaneColours[0]},
                  {.name = "V", .colour = kPlaneColours[1]}};
  for (const Layer& layer : report.layers) {
    chart.series[0].values.push_back(value(layer.k));
    chart.series[1].values.push_back(value(layer.v));
  }
  return chart;
}

std::string FigureText(const CompressionReport& report) {
  SvgFigure figure;
  figure.AddLogLines(EnergyChart(report, &Layer::k, "K"));
  figure.AddLogLines(EnergyChart(report, &Layer::v, "V"));
  figure.AddStackedBars(BitsChart(report, &Layer::k, "K"));
  figure.AddStackedBars(BitsChart(report, &Layer::v, "V"));
  figure.AddStackedBars(PlanesChart(report, "Bytes", "bytes per token",
                                    [](const Plane& p) { return p.bytes_per_token(); }));
  if (report.predicted_kl.has_value()) {
    figure.AddStackedBars(PlanesChart(report, "Predicted KL", "nats per token",
                                      [](const Plane& p) { return p.predicted_kl; }));
  }
  return figure.Text();
}

absl::Status WriteText(const std::string& path, const std::string& text) {
  ASSIGN_OR_RETURN(const std::unique_ptr<AtomicFile> file, AtomicFile::Create(path));
  RETURN_IF_ERROR(file->Write(text));
  return file->Publish();
}

}  // namespace

double CompressionReport::ratio_at(int64_t tokens) const {
  const auto n = static_cast<double>(tokens);
  return n * full_bytes_per_token / (n * bytes_per_token + bytes_per_sequence);
}

std::string CompressionReport::OfTheAllowed() const {
  const double allowed = allowed_bytes_per_token.value_or(0);
  if (bytes_per_token >= 0.99 * allowed) return "";
  return absl::StrFormat(" of the %.1f allowed (ratio %.2f)", allowed,
                         full_bytes_per_token / allowed);
}

absl::Status WriteReport(const std::string& latents_path, const CompressionReport& report) {
  const std::string figure = latents_path + ".report.svg";
  RETURN_IF_ERROR(WriteText(latents_path + ".report.json", JsonText(report)));
  RETURN_IF_ERROR(WriteText(figure, FigureText(report)));
  return WriteText(latents_path + ".report.md",
                   MarkdownText(std::filesystem::path(figure).filename().string(), report));
}

}  // namespace latentd
