#include "engine/compressor/compress.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "base/status_macros.h"
#include "engine/checkpoint/atomic_file.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/latents_file.h"
#include "engine/compressor/calibration.h"
#include "engine/model/weights.h"
#include "engine/text/chat_template.h"
#include "engine/text/tokenizer.h"

namespace latentd {
namespace {

Progress Stage(const CompressProgress& progress, std::string_view what) {
  return [&progress, what](double share) { return progress(what, share); };
}

absl::StatusOr<CalibrationWindows> WriteOwnText(const CompressOptions& options,
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
  const int64_t blocks = (options.window_tokens + kBlockTokens - 1) / kBlockTokens;
  ASSIGN_OR_RETURN(
      const CacheLayout window,
      CacheLayout::Create(CacheLayersOf(checkpoint.config(), nullptr, Codec::kF16), blocks, 1));
  model.cache_bytes = std::max(model.cache_bytes, window.total_bytes());
  ASSIGN_OR_RETURN(const OpenedModel opened, OpenModel(model, options.windows));
  return WindowsFromModel(*opened.engine, checkpoint.config(), tokenizer, chat_template.get(),
                          options.windows, options.window_tokens, options.seed,
                          Stage(progress, "the model writes its calibration text"));
}

absl::StatusOr<CalibrationWindows> MakeWindows(const CompressOptions& options,
                                               const Checkpoint& checkpoint,
                                               const CompressProgress& progress) {
  ASSIGN_OR_RETURN(const std::unique_ptr<Tokenizer> tokenizer,
                   Tokenizer::Create(checkpoint.tokenizer()));
  if (options.calibration.empty()) return WriteOwnText(options, checkpoint, *tokenizer, progress);
  return WindowsFromFiles(options.calibration, *tokenizer, options.windows, options.window_tokens);
}

CompressionReport::Plane ReportOf(const PlaneFactors& factors) {
  return {.latent_heads = factors.plane.latent_heads,
          .dims = factors.plane.dims(),
          .codec = Info(factors.plane.segments[0].codec).name,
          .bytes_per_token = static_cast<double>(factors.plane.plane_bytes()) / kBlockTokens,
          .energy_kept = factors.energy_kept};
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

}  // namespace

absl::StatusOr<CompressionReport> Compress(CompressOptions options,
                                           const CompressProgress& progress) {
  const absl::Time start = absl::Now();
  if (options.out.empty())
    return absl::InvalidArgumentError("--out is missing: the latents file to write");
  RETURN_IF_ERROR(AtomicFile::Create(options.out).status());  // now, not after all the work
  RETURN_IF_ERROR(CheckLinearAlgebra());
  ASSIGN_OR_RETURN(const std::unique_ptr<Checkpoint> checkpoint, OpenCheckpoint(options.model));
  RETURN_IF_ERROR(CheckReplaces(options.out, *checkpoint));
  const ModelConfig& config = checkpoint->config();
  ASSIGN_OR_RETURN(options.palu.heads_per_group, HeadsPerGroup(options.group, config.num_kv_heads));
  RETURN_IF_ERROR(Validate(options.palu, config));
  if (options.window_tokens > config.max_context) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--window is ", options.window_tokens, ", the model was made for ", config.max_context));
  }

  ASSIGN_OR_RETURN(const CalibrationWindows windows, MakeWindows(options, *checkpoint, progress));
  ASSIGN_OR_RETURN(const std::unique_ptr<Ops> ops, CreateOps(options.model));
  ASSIGN_OR_RETURN(const std::vector<Matrix> moments,
                   InputMoments(*checkpoint, windows, *ops,
                                Stage(progress, "measuring the inputs of every layer")));

  CompressionReport report{
      .model = config.name,
      .method = Describe(options.palu, config),
      .calibration = options.calibration.empty() ? "text sampled from the model"
                                                 : absl::StrJoin(options.calibration, " "),
      .windows = options.windows,
      .window_tokens = options.window_tokens,
      .full_bytes_per_token = static_cast<double>(config.full_bytes_per_token())};
  std::vector<LayerFactors> factors;
  for (int l = 0; l < config.num_layers; ++l) {
    ASSIGN_OR_RETURN(LayerFactors layer, FactorizeLayer(*checkpoint, l, moments[l], options.palu));
    report.layers.push_back({.k = ReportOf(layer.k), .v = ReportOf(layer.v)});
    report.bytes_per_token +=
        report.layers.back().k.bytes_per_token + report.layers.back().v.bytes_per_token;
    factors.push_back(std::move(layer));
    RETURN_IF_ERROR(progress("factorising", static_cast<double>(l + 1) / config.num_layers));
  }
  Latents latents{.method = report.method};
  for (const LayerFactors& layer : factors) {
    latents.layers.push_back(layer.View(config.hidden_dim));
  }
  RETURN_IF_ERROR(WriteLatents(options.out, Fingerprint(*checkpoint), latents));
  report.seconds = absl::ToDoubleSeconds(absl::Now() - start);
  RETURN_IF_ERROR(WriteReport(options.out, report));
  return report;
}

}  // namespace latentd
