#include "engine/compressor/compress.h"

#include <sys/resource.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/command_line.h"
#include "base/machine_memory.h"
#include "base/status_macros.h"
#include "engine/checkpoint/atomic_file.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/latents_file.h"
#include "engine/compressor/calibration.h"
#include "engine/compressor/dense_algebra.h"
#include "engine/compressor/matrix.h"
#include "engine/compressor/statistics.h"
#include "engine/local_engine.h"
#include "engine/model/weights.h"
#include "engine/text/chat_template.h"
#include "engine/text/shingles.h"
#include "engine/text/tokenizer.h"

namespace latentd {
namespace {

constexpr int kDefaultWindowTokens = 1024;
// Windows that the statistics do not see; the loss is measured on them.
constexpr int kHeldOutWindows = 2;

Progress Stage(const CompressProgress& progress, std::string_view what) {
  return [&progress, what](double share) { return progress(what, share); };
}

// The same of measuring: the first share says whether an earlier run has done some of it.
Progress MeasuringStage(const CompressProgress& progress, const std::string& path, bool* resumed) {
  return [&progress, path, resumed, begun = false](double share) mutable {
    if (!begun) *resumed = share > 0;
    begun = true;
    return progress(*resumed ? absl::StrCat("measuring every layer, going on from ", path)
                             : "measuring every layer",
                    share);
  };
}

// What both methods have, and each does its own way.
int SinksOf(const CompressOptions& options) {
  return std::visit([](const auto& method) { return method.sinks; }, options.method);
}

StatisticsOptions::Gradients GradientsOf(const CompressOptions& options) {
  const auto* palu = std::get_if<PaluOptions>(&options.method);
  if (palu == nullptr) return StatisticsOptions::Gradients::kSampled;
  return palu->allocation == RankAllocation::kUniform ? StatisticsOptions::Gradients::kNone
                                                      : StatisticsOptions::Gradients::kText;
}

absl::StatusOr<std::vector<LayerFactors>> Factorise(const CompressOptions& options,
                                                    const Checkpoint& checkpoint,
                                                    const std::vector<LayerStatistics>& statistics,
                                                    const Progress& progress) {
  if (const auto* palu = std::get_if<PaluOptions>(&options.method)) {
    return CompressPalu(checkpoint, statistics, *palu, progress);
  }
  const int64_t tokens = int64_t{options.windows} * (options.window_tokens - SinksOf(options));
  return CompressMixed(checkpoint, statistics, tokens, std::get<MixedOptions>(options.method),
                       progress);
}

// Fills in what depends on the model, and checks everything that needs no work.
absl::Status Complete(const Checkpoint& checkpoint, CompressOptions* options) {
  const ModelConfig& config = checkpoint.config();
  ASSIGN_OR_RETURN(const int group, HeadsPerGroup(options->group, config.num_kv_heads));
  RETURN_IF_ERROR(std::visit(
      [&](auto& method) {
        method.heads_per_group = group;
        return Validate(method, config);
      },
      options->method));
  if (options->window_tokens == 0) {
    options->window_tokens = std::min(kDefaultWindowTokens, config.max_context);
  }
  if (options->window_tokens > config.max_context) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--window is ", options->window_tokens, ", the model was made for ", config.max_context));
  }
  if (options->window_tokens < 2) {
    return absl::InvalidArgumentError(
        absl::StrCat("--window is ", options->window_tokens, ", a window has at least 2 tokens"));
  }
  if (options->window_tokens <= SinksOf(*options)) {
    return absl::InvalidArgumentError(absl::StrCat("--window is ", options->window_tokens,
                                                   ", it must be more than --sinks, which is ",
                                                   SinksOf(*options)));
  }
  const int64_t memory = MachineMemory();
  const int64_t needed = WorkBytes(*options, config);
  if (needed > memory) {
    return absl::ResourceExhaustedError(
        absl::StrCat("the statistics of ", config.num_layers, " layers of ", config.kv_dim(),
                     " KV dims take ", FormatBytes(static_cast<double>(needed)),
                     " of memory, this machine has ", FormatBytes(static_cast<double>(memory))));
  }
  return absl::OkStatus();
}

// An older latents file, of any model, is replaced. Any other file, such as the model's own
// weights, is not.
absl::Status CheckReplaces(const std::string& out, const Checkpoint& checkpoint) {
  std::error_code ignored;
  if (!std::filesystem::exists(out, ignored)) return absl::OkStatus();
  const absl::Status older = OpenLatents(out, checkpoint).status();
  if (older.ok() || absl::IsFailedPrecondition(older)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("--out is \"", out, "\", which is there and is no latents file"));
}

int64_t BlocksOf(int tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

absl::StatusOr<CalibrationWindows> WriteOwnText(const CompressOptions& options, int windows,
                                                const Checkpoint& checkpoint,
                                                const Tokenizer& tokenizer,
                                                const CompressProgress& progress) {
  std::unique_ptr<ChatTemplate> chat_template;
  if (!checkpoint.tokenizer().chat_template.empty()) {
    ASSIGN_OR_RETURN(chat_template, ChatTemplate::Create(checkpoint.tokenizer()));
  }
  ModelOptions model = options.model;
  model.max_context = options.window_tokens;
  // Room for one window at least.
  ASSIGN_OR_RETURN(const CacheLayout window,
                   CacheLayout::Create(CacheLayersOf(checkpoint.config(), nullptr, Codec::kF16),
                                       BlocksOf(options.window_tokens), 1));
  const int64_t wanted = model.cache_bytes > 0 ? model.cache_bytes : kDefaultCacheBytes;
  model.cache_bytes = std::max(wanted, window.total_bytes());
  ASSIGN_OR_RETURN(const OpenedModel opened, OpenModel(model, windows));
  return WindowsFromModel(*opened.engine, checkpoint.config(), tokenizer, chat_template.get(),
                          windows, options.window_tokens, options.seed,
                          Stage(progress, "the model writes its calibration text"));
}

struct CalibrationText {
  CalibrationWindows windows;   // for the statistics
  CalibrationWindows held_out;  // for measuring the loss
};

absl::StatusOr<CalibrationText> MakeText(const CompressOptions& options,
                                         const Checkpoint& checkpoint,
                                         const CompressProgress& progress) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                   Tokenizer::Create(checkpoint.tokenizer()));
  const int count = options.windows + kHeldOutWindows;
  CalibrationWindows all;
  if (options.calibration.empty()) {
    ASSIGN_OR_RETURN(all, WriteOwnText(options, count, checkpoint, *tokenizer, progress));
  } else {
    absl::StatusOr<CalibrationWindows> read =
        WindowsFromFiles(options.calibration, *tokenizer, count, options.window_tokens);
    if (absl::IsInvalidArgument(read.status())) {
      return absl::InvalidArgumentError(absl::StrCat(read.status().message(), " (--windows is ",
                                                     options.windows, ", ", kHeldOutWindows,
                                                     " more measure the loss)"));
    }
    ASSIGN_OR_RETURN(all, std::move(read));
  }
  CalibrationText text;
  for (int i = 0; i < count; ++i) {
    // Evenly spaced, for windows of one kind stand together.
    const bool held_out = i * kHeldOutWindows / count != (i + 1) * kHeldOutWindows / count;
    (held_out ? text.held_out : text.windows).push_back(std::move(all[i]));
  }
  return text;
}

absl::StatusOr<std::unique_ptr<Engine>> OpenEngine(const CompressOptions& options,
                                                   const Checkpoint& checkpoint,
                                                   const Latents* latents) {
  ASSIGN_OR_RETURN(std::unique_ptr<Ops> ops, CreateOps(options.model));
  return CreateLocalEngine(
      checkpoint, latents, std::move(ops),
      {.num_blocks = BlocksOf(options.window_tokens), .max_context = options.window_tokens});
}

// What the latents cost, and what they take, as an engine sees it.
absl::Status Measure(const CompressOptions& options, const Checkpoint& checkpoint,
                     const Latents& latents, const CalibrationWindows& held_out,
                     const CompressProgress& progress, CompressionReport* report) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Engine> full, OpenEngine(options, checkpoint, nullptr));
  ASSIGN_OR_RETURN(const std::unique_ptr<Engine> engine, OpenEngine(options, checkpoint, &latents));
  report->bytes_per_sequence = engine->info().bytes_per_sequence;
  std::vector<TextWindow> windows;
  for (const std::vector<int32_t>& window : held_out) windows.push_back({.tokens = window});
  ASSIGN_OR_RETURN(report->measured,
                   MeasureDivergence(*full, *engine, windows, options.model.threads,
                                     Stage(progress, "measuring the loss")));
  return absl::OkStatus();
}

CompressionReport::Plane ReportOf(const PlaneFactors& factors) {
  return {.layout = factors.plane,
          .full_dims = static_cast<int>(factors.energy.size()),
          .energy = factors.energy,
          .energy_kept = factors.EnergyKept(),
          .predicted_kl = factors.predicted_kl};
}

void AddLayers(const std::vector<LayerFactors>& factors, bool is_predicted,
               CompressionReport* report) {
  double predicted = 0;
  for (const LayerFactors& layer : factors) {
    report->layers.push_back({.k = ReportOf(layer.k), .v = ReportOf(layer.v)});
    predicted += layer.k.predicted_kl + layer.v.predicted_kl;
  }
  if (is_predicted) report->predicted_kl = predicted;
}

// Where the statistics are kept.
std::string WorkPath(const CompressOptions& options) {
  return options.statistics.empty() ? options.out + ".partial" : options.statistics;
}

absl::StatusOr<std::vector<LayerStatistics>> MeasureLayers(const CalibrationWindows& windows,
                                                           const Checkpoint& checkpoint,
                                                           const CompressOptions& options,
                                                           const Progress& progress) {
  ASSIGN_OR_RETURN(const std::unique_ptr<DenseAlgebra> algebra,
                   CreateDenseAlgebra(options.model.device, options.model.threads));
  return MeasureStatistics(checkpoint, windows,
                           {.sinks = SinksOf(options),
                            .gradients = GradientsOf(options),
                            .seed = options.seed,
                            .resume_path = WorkPath(options)},
                           *algebra, progress);
}

int64_t PeakBytes() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} * 1024;
}

// All that is done with the text, to a latents file.
absl::StatusOr<CompressionReport> CompressOn(const CalibrationText& text,
                                             const Checkpoint& checkpoint,
                                             const CompressOptions& options,
                                             const CompressProgress& progress) {
  const ModelConfig& config = checkpoint.config();
  bool resumed = false;
  ASSIGN_OR_RETURN(const std::vector<LayerStatistics> statistics,
                   MeasureLayers(text.windows, checkpoint, options,
                                 MeasuringStage(progress, WorkPath(options), &resumed)));
  ASSIGN_OR_RETURN(const std::vector<LayerFactors> factors,
                   Factorise(options, checkpoint, statistics, Stage(progress, "factorising")));

  CompressionReport report{
      .model = config.name,
      .calibration = options.calibration.empty() ? "text sampled from the model"
                                                 : absl::StrJoin(options.calibration, " "),
      .windows = options.windows,
      .window_tokens = options.window_tokens,
      .full_bytes_per_token = static_cast<double>(config.full_bytes_per_token()),
      .resumed = resumed};
  AddLayers(factors, std::holds_alternative<MixedOptions>(options.method), &report);
  Latents latents{.shingles = ShinglesOf(text.windows)};
  for (const LayerFactors& layer : factors) {
    latents.layers.push_back(layer.View(config));
    report.bytes_per_token +=
        static_cast<double>(latents.layers.back().cache.block_bytes()) / kBlockTokens;
  }
  if (const auto* mixed = std::get_if<MixedOptions>(&options.method)) {
    report.method = Describe(*mixed, config, report.ratio());
    report.allowed_bytes_per_token = AllowedBytesPerToken(*mixed, config);
  } else {
    report.method = Describe(std::get<PaluOptions>(options.method), config);
  }
  latents.method = report.method;
  RETURN_IF_ERROR(Measure(options, checkpoint, latents, text.held_out, progress, &report));

  RETURN_IF_ERROR(WriteLatents(options.out, Fingerprint(checkpoint), latents));
  return report;
}

}  // namespace

int64_t WorkBytes(const CompressOptions& options, const ModelConfig& config) {
  const int64_t kv_dim = config.kv_dim();
  int64_t plane = kv_dim * kv_dim;
  switch (GradientsOf(options)) {
    case StatisticsOptions::Gradients::kNone:
      break;
    case StatisticsOptions::Gradients::kSampled:
      plane += kv_dim * kv_dim;
      break;
    case StatisticsOptions::Gradients::kText:
      plane += kv_dim * config.hidden_dim;
      break;
  }
  // The bases of all planes are there together, for bits are given to all at once.
  if (const auto* mixed = std::get_if<MixedOptions>(&options.method)) {
    plane += 2 * kv_dim * mixed->heads_per_group * config.head_dim;
  }
  return 2 * config.num_layers * plane * static_cast<int64_t>(sizeof(double));
}

absl::Status ValidateFlags(const CompressOptions& options) {
  if (options.model.model.empty()) return OpenCheckpoint(options.model).status();
  if (options.out.empty())
    return absl::InvalidArgumentError("--out is missing: the latents file to write");
  if (options.statistics == options.out) {
    return absl::InvalidArgumentError(
        absl::StrCat("--statistics and --out are both \"", options.out, "\""));
  }
  return CreateOps(options.model).status();
}

absl::StatusOr<CompressionReport> Compress(CompressOptions options,
                                           const CompressProgress& progress) {
  const absl::Time start = absl::Now();
  RETURN_IF_ERROR(ValidateFlags(options));
  RETURN_IF_ERROR(AtomicFile::Create(options.out).status());  // now, not after all the work
  std::error_code ignored;
  if (!options.statistics.empty() && !std::filesystem::exists(options.statistics, ignored)) {
    RETURN_IF_ERROR(AtomicFile::Create(options.statistics).status());
  }
  RETURN_IF_ERROR(CheckLinearAlgebra());
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, OpenCheckpoint(options.model));
  RETURN_IF_ERROR(CheckReplaces(options.out, *checkpoint));
  RETURN_IF_ERROR(Complete(*checkpoint, &options));
  ASSIGN_OR_RETURN(const CalibrationText text, MakeText(options, *checkpoint, progress));
  absl::StatusOr<CompressionReport> report = CompressOn(text, *checkpoint, options, progress);
  if (absl::IsCancelled(report.status()) && std::filesystem::exists(WorkPath(options), ignored)) {
    return absl::CancelledError(
        absl::StrCat(report.status().message(), "; the same command goes on from here"));
  }
  RETURN_IF_ERROR(report.status());
  report->seconds = absl::ToDoubleSeconds(absl::Now() - start);
  report->peak_bytes = PeakBytes();
  RETURN_IF_ERROR(WriteReport(options.out, *report));
  if (options.statistics.empty()) std::filesystem::remove(WorkPath(options), ignored);
  return report;
}

}  // namespace latentd
