#include "tests/testing/decoder_harness.h"

#include <unistd.h>

#include <cstring>
#include <numeric>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"

namespace latentd {

namespace {
constexpr int kSeats = 4;
}  // namespace

std::string GoldenModel(const std::string& name) {
  return absl::StrCat(LATENTD_GOLDEN_DIR, "/", name);
}

absl::StatusOr<std::unique_ptr<DecoderHarness>> DecoderHarness::Create(const Checkpoint& checkpoint,
                                                                       const Latents* latents,
                                                                       std::unique_ptr<Ops> ops,
                                                                       Codec full_codec,
                                                                       int num_blocks) {
  const ModelConfig& config = checkpoint.config();
  ASSIGN_OR_RETURN(CacheLayout layout,
                   CacheLayout::Create(CacheLayersOf(config, latents, full_codec), num_blocks, kSeats));
  std::unique_ptr<DecoderHarness> harness(new DecoderHarness(config, std::move(layout)));
  harness->ops_ = std::move(ops);
  ASSIGN_OR_RETURN(harness->weights_, LoadWeights(checkpoint,
                                                  {.latents = latents,
                                                   .full_codec = full_codec,
                                                   .max_context = config.max_context,
                                                   .max_positions = config.max_context},
                                                  *harness->ops_));
  ASSIGN_OR_RETURN(harness->pool_, CachePool::Create(harness->layout_.total_bytes()));
  std::memset(harness->pool_->data(), 0xFF, harness->layout_.total_bytes());
  harness->decoder_ = std::make_unique<Decoder>(config, harness->weights_, *harness->ops_);
  return harness;
}

std::vector<std::vector<float>> DecoderHarness::Run(const Batch& batch) {
  decoder_->Forward(batch, layout_, pool_->data());
  std::vector<int32_t> rows(batch.num_tokens());
  std::iota(rows.begin(), rows.end(), 0);
  const float* logits = decoder_->Logits(rows);
  std::vector<std::vector<float>> out;
  for (int64_t r = 0; r < batch.num_tokens(); ++r) {
    out.emplace_back(logits + r * config_.vocab_size, logits + (r + 1) * config_.vocab_size);
  }
  return out;
}

std::vector<std::vector<float>> DecoderHarness::RunSequence(absl::Span<const int32_t> tokens,
                                                            absl::Span<const int32_t> blocks,
                                                            const std::vector<int>& cuts, int seat) {
  std::vector<std::vector<float>> out;
  int begin = 0;
  std::vector<int> ends = cuts;
  ends.push_back(static_cast<int>(tokens.size()));
  for (int end : ends) {
    Batch batch{.max_blocks = static_cast<int64_t>(blocks.size())};
    AppendRows(&batch, tokens, begin, end, blocks, seat);
    for (std::vector<float>& row : Run(batch)) out.push_back(std::move(row));
    begin = end;
  }
  return out;
}

absl::StatusOr<std::unique_ptr<Latents>> MakeLatents(const Checkpoint& checkpoint,
                                                         const PaluOptions& options,
                                                         std::optional<Codec> codec) {
  const ModelConfig& config = checkpoint.config();
  RETURN_IF_ERROR(Validate(options, config));
  Matrix moment(config.hidden_dim, config.hidden_dim);
  for (int i = 0; i < config.hidden_dim; ++i) moment.at(i, i) = 1;
  std::vector<LayerFactors> factors;
  Latents latents{.method = "test"};
  for (int l = 0; l < config.num_layers; ++l) {
    ASSIGN_OR_RETURN(LayerFactors layer, FactorizeLayer(checkpoint, l, moment, options));
    if (codec.has_value()) {
      layer.k.plane.segments[0].codec = layer.v.plane.segments[0].codec = *codec;
    }
    factors.push_back(std::move(layer));
  }
  for (const LayerFactors& layer : factors) {
    latents.layers.push_back(layer.View(config.hidden_dim));
  }
  const std::string path =
      absl::StrCat(::testing::TempDir(), "/latents-", getpid(), "-", std::rand());
  RETURN_IF_ERROR(WriteLatents(path, Fingerprint(checkpoint), latents));
  absl::StatusOr<std::unique_ptr<Latents>> file = OpenLatents(path, checkpoint);
  unlink(path.c_str());
  return file;
}

}  // namespace latentd
