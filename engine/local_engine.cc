#include "engine/local_engine.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/cache_pool.h"
#include "engine/model/decoder.h"
#include "engine/model/weights.h"

namespace latentd {
namespace {

// Rows of logits held at once: bounds memory (64 x 128k vocabulary = 32 MiB) whatever the batch.
constexpr int kLogitRows = 64;

class LocalEngine final : public Engine {
 public:
  LocalEngine(const ModelConfig& config, EngineInfo info, std::unique_ptr<Ops> ops,
              ModelWeights weights)
      : config_(config),
        ops_(std::move(ops)),
        weights_(std::move(weights)),
        info_(std::move(info)),
        decoder_(config_, weights_, *ops_) {}

  const EngineInfo& info() const override { return info_; }

  absl::Status MakePool(CacheLayout layout, int max_context) {
    ASSIGN_OR_RETURN(const std::optional<DeviceMemory> memory, ops_->device().Memory());
    absl::StatusOr<DeviceArray<uint8_t>> pool =
        DeviceArray<uint8_t>::Create(ops_->device(), layout.total_bytes());
    if (!pool.ok()) {
      return absl::Status(pool.status().code(),
                          absl::StrCat("the cache: ", pool.status().message(),
                                       "; lower --cache-bytes or --cache-fraction"));
    }
    pool_ = *std::move(pool);
    info_.max_context = max_context;
    info_.num_blocks = layout.num_blocks();
    info_.num_sequences = static_cast<int>(layout.num_sequences());
    info_.pool_bytes = layout.total_bytes();
    if (memory.has_value()) {
      info_.device_bytes = memory->total;
      info_.device_bytes_used = memory->used;
    }
    layout_ = std::move(layout);
    return absl::OkStatus();
  }

  void DropPool() { pool_ = {}; }

  absl::Status RandomizeCache() { return RandomizePool(ops_->device(), pool_); }

  // Computes the steps that take the most memory: `rows` rows, of one sequence and of as many as
  // there are, and one row of each, all near the end of a context of that many tokens, whose blocks
  // are all the pool's first. The device keeps the memory for what follows.
  absl::Status ComputeLargestSteps(int rows, int context) {
    const int most = std::min(rows, info_.num_sequences);
    struct Rows {
      int sequences, each;
    };
    for (const auto& [sequences, each] : {Rows{1, rows}, Rows{most, rows / most}, Rows{most, 1}}) {
      const int rows_each = std::min(each, context);
      // The rows lie in as many pages as they can.
      const int last_page = (context - rows_each / 2) / kBlockTokens * kBlockTokens;
      const int end = std::max(rows_each, last_page + rows_each / 2);
      const std::vector<int32_t> tokens(end, 0), blocks((end - 1) / kBlockTokens + 1, 0);
      Batch batch{.max_blocks = std::ssize(blocks)};
      for (int s = 0; s < sequences; ++s) {
        const int row = AppendRows(&batch, tokens, end - rows_each, end, blocks, s);
        batch.samples.push_back({.row = row, .params = {.temperature = 0}, .position = end});
      }
      RETURN_IF_ERROR(Step(batch).status());
    }
    return absl::OkStatus();
  }

  absl::StatusOr<StepOutput> Step(const Batch& batch) override {
    StepOutput output;
    if (dead_.ok()) dead_ = Compute(batch, &output);
    RETURN_IF_ERROR(dead_);
    return output;
  }

  absl::StatusOr<absl::Span<const float>> Logits(absl::Span<const int32_t> rows) override {
    RETURN_IF_ERROR(dead_);
    ASSIGN_OR_RETURN(const float* logits, decoder_.Logits(rows));
    logits_.resize(rows.size() * config_.vocab_size);
    ops_->device().CopyOut(logits_.data(), logits, std::ssize(logits_) * int64_t{sizeof(float)});
    dead_ = ops_->device().Wait();
    RETURN_IF_ERROR(dead_);
    return absl::MakeConstSpan(logits_);
  }

 private:
  absl::Status Compute(const Batch& batch, StepOutput* output) {
    RETURN_IF_ERROR(Check(batch));
    LATENTD_CHECK(layout_.has_value());
    RETURN_IF_ERROR(decoder_.Forward(batch, *layout_, pool_.data()));
    RETURN_IF_ERROR(Sample(batch, output));
    RETURN_IF_ERROR(Score(batch, output));
    return ops_->device().Wait();
  }

  absl::Status Check(const Batch& batch) const {
    for (const int32_t id : batch.token_ids) RETURN_IF_ERROR(CheckToken(id));
    for (const BatchScore& score : batch.scores) RETURN_IF_ERROR(CheckToken(score.token_id));
    for (int32_t length : batch.kv_lens) {
      if (length > info_.max_context) {
        return absl::InternalError(absl::StrCat("a batch holds a sequence of ", length,
                                                " tokens, the context is ", info_.max_context));
      }
    }
    const int64_t slots = info_.num_blocks * kBlockTokens;
    for (const int64_t slot : batch.slots) RETURN_IF_ERROR(CheckPlace("slot", slot, slots));
    for (const int32_t seat : batch.seats) {
      RETURN_IF_ERROR(CheckPlace("seat", seat, info_.num_sequences));
    }
    return absl::OkStatus();
  }

  absl::Status CheckToken(int32_t id) const {
    if (id >= 0 && id < config_.vocab_size) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("a batch holds token id ", id, ", the vocabulary has ", config_.vocab_size));
  }

  // A place in the pool is one of `count`.
  static absl::Status CheckPlace(const char* name, int64_t place, int64_t count) {
    if (place >= 0 && place < count) return absl::OkStatus();
    return absl::InternalError(
        absl::StrCat("a batch holds ", name, " ", place, ", the cache has ", count));
  }

  absl::Status Sample(const Batch& batch, StepOutput* output) {
    output->samples.resize(batch.samples.size());
    std::vector<int32_t> indices;
    std::vector<SampleRow> rows;
    for (size_t begin = 0; begin < batch.samples.size(); begin += kLogitRows) {
      const size_t count = std::min<size_t>(kLogitRows, batch.samples.size() - begin);
      indices.clear();
      rows.clear();
      for (size_t i = 0; i < count; ++i) {
        const BatchSample& sample = batch.samples[begin + i];
        indices.push_back(sample.row);
        rows.push_back(RowOf(sample));
      }
      ASSIGN_OR_RETURN(const float* logits, decoder_.Logits(indices));
      ops_->Sample({.logits = logits,
                    .vocab = config_.vocab_size,
                    .rows = rows,
                    .results = absl::MakeSpan(output->samples).subspan(begin, count)});
    }
    return absl::OkStatus();
  }

  absl::Status Score(const Batch& batch, StepOutput* output) {
    output->logprobs.resize(batch.scores.size());
    std::vector<int32_t> indices, token_ids;
    for (size_t begin = 0; begin < batch.scores.size(); begin += kLogitRows) {
      const size_t count = std::min<size_t>(kLogitRows, batch.scores.size() - begin);
      indices.clear();
      token_ids.clear();
      for (size_t i = 0; i < count; ++i) {
        indices.push_back(batch.scores[begin + i].row);
        token_ids.push_back(batch.scores[begin + i].token_id);
      }
      ASSIGN_OR_RETURN(const float* logits, decoder_.Logits(indices));
      ops_->LogProbability({.logits = logits,
                            .vocab = config_.vocab_size,
                            .token_ids = token_ids,
                            .results = absl::MakeSpan(output->logprobs).subspan(begin, count)});
    }
    return absl::OkStatus();
  }

  static SampleRow RowOf(const BatchSample& sample) {
    const SamplingParams& p = sample.params;
    return {.temperature = p.temperature,
            .top_k = p.top_k,
            .top_p = p.top_p,
            .min_p = p.min_p,
            .repetition_penalty = p.repetition_penalty,
            .presence_penalty = p.presence_penalty,
            .frequency_penalty = p.frequency_penalty,
            .seed = p.seed,
            .position = sample.position,
            .tokens = sample.tokens,
            .num_prompt_tokens = sample.num_prompt_tokens,
            .banned = sample.banned,
            .num_logprobs = p.num_logprobs};
  }

  const ModelConfig& config_;
  const std::unique_ptr<Ops> ops_;  // its device outlives the arrays below
  const ModelWeights weights_;
  EngineInfo info_;
  std::optional<CacheLayout> layout_;
  DeviceArray<uint8_t> pool_;
  Decoder decoder_;
  std::vector<float> logits_;  // what Logits() returned last
  absl::Status dead_;          // the error of the step that ended this engine
};

int64_t FactorBytes(const Latents& latents) {
  int64_t bytes = 0;
  for (const LatentLayer& layer : latents.layers) {
    for (const TensorView* factor : {&layer.k_down, &layer.k_up, &layer.v_down, &layer.v_up}) {
      bytes += factor->bytes();
    }
  }
  return bytes;
}

// "int8 factors (22 layers), fp16 factors (8 layers)", in the order of the first layer of each.
std::string DecodeKernels(const ModelWeights& weights) {
  std::vector<std::pair<std::string, int>> kernels;
  for (const LayerWeights& layer : weights.layers) {
    const std::string name(layer.attention->decode_kernel());
    if (name.empty()) return "";
    auto it = std::ranges::find(kernels, name, &std::pair<std::string, int>::first);
    if (it == kernels.end()) it = kernels.insert(it, {name, 0});
    ++it->second;
  }
  return absl::StrJoin(kernels, ", ", [](std::string* out, const auto& kernel) {
    absl::StrAppend(out, kernel.first, " (", kernel.second, " layers)");
  });
}

// Of the model and its cache; the pool's size comes with the pool.
EngineInfo InfoOf(const ModelConfig& config, const CacheLayout& layout, const Latents* latents,
                  Codec full_codec, const Ops& ops, const ModelWeights& weights) {
  EngineInfo info{.model_name = config.name,
                  .family = config.family,
                  .vocab_size = config.vocab_size,
                  .num_layers = config.num_layers,
                  .sliding_window = config.sliding_window,
                  .bytes_per_token = layout.bytes_per_token(),
                  .bytes_per_sequence = static_cast<double>(layout.bytes_per_sequence()),
                  .full_bytes_per_token = static_cast<double>(config.full_bytes_per_token()),
                  .weight_bytes = weights.bytes,
                  .factor_bytes = latents != nullptr ? FactorBytes(*latents) : 0,
                  .cache_name = latents != nullptr ? latents->method
                                                   : absl::StrCat("full ", Info(full_codec).name),
                  .device = std::string(ops.name()),
                  .weight_type = std::string(ops.weight_type()),
                  .decode_kernels = DecodeKernels(weights)};
  for (int l = 0; l < layout.num_layers(); ++l) {
    const CacheLayer& layer = layout.layer(l);  // key norms belong to K
    const int64_t v_bytes = layer.v.plane_bytes();
    info.k_bytes_per_token += static_cast<double>(layer.block_bytes() - v_bytes) / kBlockTokens;
    info.v_bytes_per_token += static_cast<double>(v_bytes) / kBlockTokens;
  }
  return info;
}

absl::StatusOr<CacheLayout> FirstLayout(const std::vector<CacheLayer>& layers,
                                        const EngineOptions& options, Device& device) {
  if (options.num_blocks > 0) {
    return CacheLayout::Create(layers, options.num_blocks, options.num_sequences);
  }
  if (options.cache_fraction > 0) {
    RETURN_IF_ERROR(LimitOfFraction(options.cache_fraction, device).status());  // before the load
    return CacheLayout::Create(layers, 1, options.num_sequences);
  }
  return LargestLayout(layers, options.num_sequences,
                       {.bytes = options.cache_bytes,
                        .reason = absl::StrCat("--cache-bytes is ", options.cache_bytes)});
}

}  // namespace

absl::StatusOr<std::unique_ptr<Engine>> CreateLocalEngine(const Checkpoint& checkpoint,
                                                          const Latents* latents,
                                                          std::unique_ptr<Ops> ops,
                                                          const EngineOptions& options) {
  const ModelConfig& config = checkpoint.config();
  if (options.max_context > config.max_context) {
    return absl::InvalidArgumentError(absl::StrCat(
        "--max-context is ", options.max_context, ", the model was made for ", config.max_context));
  }
  const int max_context = options.max_context > 0 ? options.max_context : config.max_context;
  const bool measures = options.num_blocks == 0 && options.cache_fraction > 0;
  const std::vector<CacheLayer> layers = CacheLayersOf(config, latents, options.full_codec);
  Device& device = ops->device();
  ASSIGN_OR_RETURN(const CacheLayout first, FirstLayout(layers, options, device));
  const auto served = [&](const CacheLayout& layout) {
    return static_cast<int>(std::min<int64_t>(max_context, layout.num_blocks() * kBlockTokens));
  };
  const int first_context = measures ? max_context : served(first);
  ASSIGN_OR_RETURN(ModelWeights weights, LoadWeights(checkpoint,
                                                     {.latents = latents,
                                                      .full_codec = options.full_codec,
                                                      .max_context = max_context,
                                                      .max_positions = first_context},
                                                     *ops));
  EngineInfo info = InfoOf(config, first, latents, options.full_codec, *ops, weights);
  auto engine =
      std::make_unique<LocalEngine>(config, std::move(info), std::move(ops), std::move(weights));
  RETURN_IF_ERROR(engine->MakePool(first, first_context));
  if (measures) {
    RETURN_IF_ERROR(engine->ComputeLargestSteps(options.max_rows, max_context));
    engine->DropPool();
    ASSIGN_OR_RETURN(const PoolLimit limit, LimitOfFraction(options.cache_fraction, device));
    ASSIGN_OR_RETURN(CacheLayout layout, LargestLayout(layers, options.num_sequences, limit));
    const int context = served(layout);
    RETURN_IF_ERROR(engine->MakePool(std::move(layout), context));
  }
  if (options.random_cache) RETURN_IF_ERROR(engine->RandomizeCache());
  return engine;
}

}  // namespace latentd
