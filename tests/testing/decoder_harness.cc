#include "tests/testing/decoder_harness.h"

#include <algorithm>
#include <cstdlib>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "gtest/gtest.h"

namespace latentd {

namespace {
constexpr int kSeats = 4;
}  // namespace

std::string GoldenModel(const std::string& name) {
  // Of a program that runs on another machine than it was built on.
  const char* carried = std::getenv("LATENTD_GOLDEN_DIR");
  return absl::StrCat(carried != nullptr ? carried : LATENTD_GOLDEN_DIR, "/", name);
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
  Device& device = harness->ops_->device();
  const int64_t bytes = harness->layout_.total_bytes();
  ASSIGN_OR_RETURN(harness->pool_, DeviceArray<uint8_t>::Create(device, bytes));
  device.Fill(harness->pool_.data(), 0xFF, bytes);
  harness->decoder_ = std::make_unique<Decoder>(config, harness->weights_, *harness->ops_);
  return harness;
}

std::vector<std::vector<float>> DecoderHarness::Run(const Batch& batch) {
  LATENTD_CHECK(decoder_->Forward(batch, layout_, pool_.data()).ok());
  std::vector<int32_t> rows(batch.num_tokens());
  std::iota(rows.begin(), rows.end(), 0);
  const absl::StatusOr<const float*> logits = decoder_->Logits(rows);
  LATENTD_CHECK(logits.ok());
  std::vector<std::vector<float>> out(rows.size(), std::vector<float>(config_.vocab_size));
  const int64_t row_bytes = config_.vocab_size * int64_t{sizeof(float)};
  for (size_t r = 0; r < rows.size(); ++r) {
    ops_->device().CopyOut(out[r].data(), *logits + r * config_.vocab_size, row_bytes);
  }
  const absl::Status status = ops_->device().Wait();
  EXPECT_TRUE(status.ok()) << status;
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
      ops_->device().Fill(pool_.data() + layout_.layer_base(l) + id * bytes, 0xFF, bytes);
    }
  }
}

}  // namespace latentd
