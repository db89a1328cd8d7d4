// latent-compress: makes a latents file for an unchanged base model.

#include <iostream>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/command_line.h"
#include "base/progress.h"
#include "base/status_macros.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/latents_file.h"
#include "engine/compressor/calibration.h"
#include "engine/compressor/palu.h"
#include "engine/compressor/report.h"
#include "engine/open_model.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"
#include "nlohmann/json.hpp"

namespace latentd {
namespace {

struct Options {
  ModelOptions model;  // --model, --device, --threads
  std::string out;
  std::string method = "palu";
  std::string group;
  std::vector<std::string> calibration;
  int windows = 32;
  int window = 512;
  int64_t seed = 0;
  PaluOptions palu;
  bool json = false;
};

// The largest divisor of the KV heads up to 4, or all heads where that is 1: the paper's default of
// 4, for any model.
int DefaultGroup(int kv_heads) {
  for (int group : {4, 3, 2}) {
    if (kv_heads % group == 0) return group;
  }
  return kv_heads;
}

absl::Status SetGroup(Options& options, int kv_heads) {
  if (options.group.empty()) {
    options.palu.heads_per_group = DefaultGroup(kv_heads);
  } else if (options.group == "all") {
    options.palu.heads_per_group = kv_heads;
  } else if (!absl::SimpleAtoi(options.group, &options.palu.heads_per_group)) {
    return absl::InvalidArgumentError(
        absl::StrCat("--group is \"", options.group, "\", allowed: all, or a number of KV heads"));
  }
  return absl::OkStatus();
}

bool CalibratesOnItself(const Options& options) {
  return options.calibration.empty() ||
         (options.calibration.size() == 1 && options.calibration[0] == "self");
}

absl::StatusOr<CalibrationWindows> MakeWindows(const Options& options,
                                               const Checkpoint& checkpoint) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                   Tokenizer::Create(checkpoint.tokenizer()));
  if (!CalibratesOnItself(options))
    return WindowsFromFiles(options.calibration, *tokenizer, options.windows, options.window);
  std::unique_ptr<ChatTemplate> chat_template;
  if (!checkpoint.tokenizer().chat_template.empty()) {
    ASSIGN_OR_RETURN(chat_template, ChatTemplate::Create(checkpoint.tokenizer()));
  }
  ModelOptions model = options.model;
  model.max_context = options.window;
  const int64_t tokens = int64_t{options.windows} *
                         ((options.window + kBlockTokens - 1) / kBlockTokens) * kBlockTokens;
  model.cache_bytes = tokens * checkpoint.config().full_bytes_per_token() + (int64_t{1} << 20);
  ASSIGN_OR_RETURN(const OpenedModel opened, OpenModel(model));
  ProgressLine line("the model writes its calibration text");
  return WindowsFromModel(*opened.engine, checkpoint.config(), *tokenizer, chat_template.get(),
                          options.windows, options.window, options.seed,
                          [&](double share) { line.Show(share); });
}

CompressionReport::Plane ReportOf(const CompressedPlane& plane) {
  return {.latent_heads = plane.plane.latent_heads,
          .dims = plane.plane.dims(),
          .codec = Info(plane.plane.segments[0].codec).name,
          .bytes_per_token = static_cast<double>(plane.plane.plane_bytes()) / kBlockTokens,
          .energy_kept = plane.energy_kept};
}

std::string MethodText(const Options& options, const ModelConfig& config) {
  const PaluOptions& palu = options.palu;
  const std::string group = palu.heads_per_group == config.num_kv_heads
                                ? "all KV heads"
                                : absl::StrCat(palu.heads_per_group, " KV heads");
  return absl::StrCat("palu, rate ", palu.rate, ", ", palu.bits, " bits, groups of ", group,
                      palu.hadamard ? "" : ", no Hadamard");
}

absl::Status Compress(Options options) {
  if (options.model.model.empty())
    return absl::InvalidArgumentError("--model is missing: a Hugging Face folder or a .gguf file");
  if (options.out.empty())
    return absl::InvalidArgumentError("--out is missing: the latents file to write");
  if (options.method != "palu") {
    return absl::InvalidArgumentError(
        absl::StrCat("--method is \"", options.method, "\", allowed: palu"));
  }
  const absl::Time start = absl::Now();
  RETURN_IF_ERROR(CheckLinearAlgebra());
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint,
                   Checkpoint::Open(options.model.model));
  const ModelConfig& config = checkpoint->config();
  RETURN_IF_ERROR(SetGroup(options, config.num_kv_heads));
  RETURN_IF_ERROR(Validate(options.palu, config));
  if (options.window > config.max_context) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--window is ", options.window, ", the model was made for ", config.max_context));
  }

  ASSIGN_OR_RETURN(const CalibrationWindows windows, MakeWindows(options, *checkpoint));
  std::vector<Matrix> moments;
  {
    ASSIGN_OR_RETURN(const std::unique_ptr<Ops> ops, CreateOps(options.model));
    ProgressLine line("measuring the inputs of every layer");
    ASSIGN_OR_RETURN(
        moments, InputMoments(*checkpoint, windows, *ops, [&](double share) { line.Show(share); }));
  }

  CompressionReport report{
      .model = config.name,
      .method = MethodText(options, config),
      .calibration = CalibratesOnItself(options) ? "text sampled from the model"
                                                 : absl::StrJoin(options.calibration, " "),
      .windows = options.windows,
      .window_tokens = options.window,
      .full_bytes_per_token = static_cast<double>(config.full_bytes_per_token())};
  LatentsContents contents{.fingerprint = Fingerprint(*checkpoint), .method = report.method};
  std::vector<CompressedPlane> planes;  // K and V of each layer; `contents` points into them
  planes.reserve(2 * config.num_layers);
  ProgressLine line("factorising");
  for (int l = 0; l < config.num_layers; ++l) {
    for (const auto& [name, order] :
         {std::pair("k", TileOrder::kDimMajor), std::pair("v", TileOrder::kTokenMajor)}) {
      const std::optional<TensorView> weight =
          checkpoint->Find(absl::StrCat("layers.", l, ".", name, ".weight"));
      if (!weight.has_value())
        return absl::NotFoundError(
            absl::StrCat("the model has no tensor layers.", l, ".", name, ".weight"));
      ASSIGN_OR_RETURN(CompressedPlane plane,
                       CompressPlane(*weight, moments[l], options.palu, config, order));
      planes.push_back(std::move(plane));
    }
    const CompressedPlane &k = planes[2 * l], &v = planes[2 * l + 1];
    contents.layers.push_back(LatentLayerOf(k, v, config));
    report.layers.push_back({.k = ReportOf(k), .v = ReportOf(v)});
    report.bytes_per_token +=
        report.layers.back().k.bytes_per_token + report.layers.back().v.bytes_per_token;
    line.Show(static_cast<double>(l + 1) / config.num_layers);
  }
  RETURN_IF_ERROR(WriteLatentsFile(options.out, contents));
  report.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  RETURN_IF_ERROR(WriteReport(options.out, report));
  const double ratio = report.full_bytes_per_token / report.bytes_per_token;
  if (options.json) {
    std::cout << nlohmann::ordered_json({{"out", options.out},
                                         {"method", report.method},
                                         {"bytes_per_token", report.bytes_per_token},
                                         {"full_bytes_per_token", report.full_bytes_per_token},
                                         {"ratio", ratio},
                                         {"seconds", report.seconds}})
              << "\n";
  } else {
    absl::PrintF(
        "%s: %s\n%.1f bytes per token instead of %.0f (ratio %.2f), in %.0f s; see %s.report.md\n",
        options.out, report.method, report.bytes_per_token, report.full_bytes_per_token, ratio,
        report.seconds, options.out);
  }
  return absl::OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  CommandLine flags({.program = "latent-compress",
                     .summary = "Factorises a model's key and value projections and writes them as "
                                "a latents file beside the "
                                "unchanged model.",
                     .example = "latent-compress --model model.gguf --out model.latents --method "
                                "palu --rate 0.5 --bits 4"});
  flags.Add("model", &options.model.model, "PATH", "Hugging Face folder or .gguf file");
  flags.Add("out", &options.out, "FILE", "latents file to write; its report lies beside it");
  flags.Add("method", &options.method, "NAME",
            "palu: uniform ranks, truncation-aware whitening (arXiv 2407.21118)");
  flags.Add("rate", &options.palu.rate, "R", "share of dims cut, as the paper counts");
  flags.Add("bits", &options.palu.bits, "N",
            "of a stored value: 4, 3, 2 (min-max), 8 (symmetric), 16, 32 (floating point)");
  flags.Add("group", &options.group, "all|N",
            "KV heads that share a latent; default: the largest divisor <= 4, or all");
  flags.Add("hadamard", &options.palu.hadamard,
            "rotate latents before coding; --no-hadamard leaves it out");
  flags.Add("calibration", &options.calibration, "self|FILE",
            "text to calibrate on, may be repeated; default: sampled from the model");
  flags.Add("windows", &options.windows, "N", "calibration windows", {.min = 1, .max = 100000});
  flags.Add("window", &options.window, "N", "tokens of a calibration window", {.min = 16});
  flags.Add("seed", &options.seed, "N", "of the sampled text", {.min = 0});
  flags.Add("device", &options.model.device, "NAME", "where to compute: cpu");
  flags.Add("threads", &options.model.threads, "N", "threads; 0: one per core",
            {.min = 0, .max = 1024});
  flags.Add("json", &options.json, "print the result as one JSON object");
  flags.ParseOrExit(argc, argv);
  const absl::Status status = Compress(std::move(options));
  if (!status.ok()) {
    std::cerr << "latent-compress: " << status.message() << "\n";
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace latentd

int main(int argc, char** argv) { return latentd::Main(argc, argv); }
