#include "tests/testing/decoder_harness.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

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
  ASSIGN_OR_RETURN(
      CacheLayout layout,
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
                                                            const std::vector<int>& cuts,
                                                            int seat) {
  std::vector<std::vector<float>> out;
  int begin = 0;
  std::vector<int32_t> held(blocks.begin(), blocks.end());
  std::vector<int> ends = cuts;
  ends.push_back(static_cast<int>(tokens.size()));
  for (int end : ends) {
    GiveBack(begin, &held);
    Batch batch{.max_blocks = static_cast<int64_t>(held.size())};
    AppendRows(&batch, tokens, begin, end, held, seat);
    for (std::vector<float>& row : Run(batch)) out.push_back(std::move(row));
    begin = end;
  }
  return out;
}

void DecoderHarness::GiveBack(int num_computed, std::vector<int32_t>* blocks) {
  if (config_.sliding_window == 0) return;
  const int first_seen = std::max(0, num_computed - config_.sliding_window + 1);
  for (int b = 0; b < first_seen / kBlockTokens; ++b) {
    const int32_t id = std::exchange((*blocks)[b], -1);
    if (id < 0) continue;
    for (int l = 0; l < layout_.num_layers(); ++l) {
      const int64_t bytes = layout_.layer(l).block_bytes();
      std::memset(pool_->data() + layout_.layer_base(l) + id * bytes, 0xFF, bytes);
    }
  }
}

}  // namespace latentd
