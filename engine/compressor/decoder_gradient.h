#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/compressor/attention_half.h"
#include "engine/compressor/calibration.h"
#include "engine/compressor/dense_algebra.h"
#include "engine/compressor/loss_gradient.h"
#include "engine/compressor/mlp_half.h"

namespace latentd {

// What the K and V projections of one layer saw and made of a window.
struct LayerProjections {
  struct Plane {
    const float* output;    // [tokens, kv_dim], before bias, QK-norm and RoPE
    const float* gradient;  // of the loss by `output`; null on the way forwards
  };
  int64_t tokens = 0;
  const float* input = nullptr;  // [tokens, hidden]
  Plane k, v;
};

// The uncompressed decoder and the gradient of its loss, in fp32 on dequantised weights, for one
// window after the other. The inputs of both halves of all layers are kept, what a half computes is
// computed again on the way back. Memory: 2 x layers x tokens x hidden floats, and one half's
// activations and weights. Borrows everything; one thread at a time. Results do not depend on the
// number of threads.
class DecoderGradient {
 public:
  using Observer = std::function<absl::Status(int layer, const LayerProjections&)>;

  // For windows of 2 to `max_tokens` tokens.
  static absl::StatusOr<std::unique_ptr<DecoderGradient>> Create(const Checkpoint& checkpoint,
                                                                 int max_tokens,
                                                                 DenseAlgebra& algebra);

  // Shows the observer every layer's projections, from the first layer to the last. `progress`
  // counts this window's share.
  absl::Status Forward(absl::Span<const int32_t> window, const Observer& observer,
                       const Progress& progress);

  // The same with gradients, from the last layer to the first. Labels and loss, which is returned:
  // LossGradient::Run.
  absl::StatusOr<double> Backward(absl::Span<const int32_t> window, std::optional<uint64_t> seed,
                                  const Observer& observer, const Progress& progress);

 private:
  DecoderGradient(const Checkpoint& checkpoint, int max_tokens, DenseAlgebra& algebra);
  void Embed(absl::Span<const int32_t> window, float* hidden);

  const ModelConfig& config_;
  DenseAlgebra& algebra_;
  TensorView token_embedding_, position_embedding_;  // the latter with learned positions
  DenseNorm embedding_norm_;                         // where the config has one
  AttentionHalf attention_;
  MlpHalf mlp_;
  LossGradient loss_;

  std::vector<float> hidden_;             // [T, hidden]
  std::vector<float> gradient_;           // [T, hidden]
  std::vector<std::vector<float>> kept_;  // [2 x layers][T, hidden]: the input of every half
};

}  // namespace latentd
