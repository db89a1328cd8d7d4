#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/latents_file.h"
#include "engine/model/decoder.h"
#include "engine/model/weights.h"
#include "kernels/ops.h"

namespace latentd {

// Where tests/engine/golden lies.
std::string GoldenModel(const std::string& name);

// A decoder over a pool of its own, of some blocks and four seats, whose every byte starts as 0xFF
// (NaN as floats), giving all logits of every batch.
class DecoderHarness {
 public:
  static absl::StatusOr<std::unique_ptr<DecoderHarness>> Create(const Checkpoint& checkpoint,
                                                                const Latents* latents,
                                                                std::unique_ptr<Ops> ops,
                                                                Codec full_codec, int num_blocks);

  // Logits [T][vocab] of the batch's rows.
  std::vector<std::vector<float>> Run(const Batch& batch);

  // Logits of tokens [0, tokens.size()) of one sequence in the given blocks and seat, computed in
  // steps that end at `cuts` and the end. Blocks that fall behind the model's window on the way are
  // taken from the sequence and filled with 0xFF.
  std::vector<std::vector<float>> RunSequence(absl::Span<const int32_t> tokens,
                                              absl::Span<const int32_t> blocks,
                                              const std::vector<int>& cuts, int seat = 0);

  // Blocks of a sequence as they stand when its first `num_computed` tokens are computed: those
  // behind the window of all later ones are filled with 0xFF and become -1.
  void GiveBack(int num_computed, std::vector<int32_t>* blocks);

 private:
  DecoderHarness(const ModelConfig& config, CacheLayout layout)
      : config_(config), layout_(std::move(layout)) {}

  const ModelConfig& config_;
  const CacheLayout layout_;
  std::unique_ptr<Ops> ops_;
  ModelWeights weights_;
  DeviceArray<uint8_t> pool_;
  std::unique_ptr<Decoder> decoder_;
};

}  // namespace latentd
