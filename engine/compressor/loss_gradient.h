#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/compressor/dense_algebra.h"

namespace latentd {

// The sum over a window's positions of the negative log likelihood, in nats, of each position's
// next token, and its gradient by the last layer's output. The head is dequantised in chunks of the
// vocabulary and its logits are computed twice, so neither is ever there as a whole. Borrows
// everything; one thread at a time.
class LossGradient {
 public:
  LossGradient(const Checkpoint& checkpoint, DenseAlgebra& algebra)
      : checkpoint_(checkpoint), config_(checkpoint.config()), algebra_(algebra) {}

  // NOT_FOUND names a tensor that the model lacks. Once, first.
  absl::Status Load();

  // The next tokens are the window's own, so its last position has none; or, with a seed, drawn
  // from the model's prediction at every position: the first token, in the order of their ids,
  // whose cumulative probability passes RandomUniform(*seed, position). hidden and gradient
  // [window.size(), hidden]; returns the loss. INTERNAL when a logit is not finite.
  absl::StatusOr<double> Run(absl::Span<const int32_t> window, std::optional<uint64_t> seed,
                             const float* hidden, float* gradient);

 private:
  // A position's softmax and next token.
  struct Position {
    float largest = 0;  // logit
    double sum = 0;     // of exp(logit - largest)
    int32_t label = -1;
    double threshold = 0;  // drawn labels: of the cumulative sum, until it is passed
    double cumulative = 0;
    float label_logit = 0;
  };

  absl::Status LoadChunk(int64_t first_token);
  void AddToSoftmax(const float* logits, Position* position) const;
  // The chunk's logits become the gradient by them.
  void Differentiate(int64_t first_token, bool draws, float* logits, Position* position) const;

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  DenseAlgebra& algebra_;
  DenseNorm norm_;
  TensorView head_;

  DenseLinear chunk_;           // some rows of the head
  std::vector<float> normed_;   // [T, hidden]
  std::vector<float> dnormed_;  // [T, hidden]
  std::vector<float> logits_;   // [T, chunk]
  std::vector<Position> positions_;
};

}  // namespace latentd
