#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/compressor/dense_algebra.h"

namespace latentd {

// The MLP half of any layer, hidden += down(activation(norm(hidden))), over T tokens, and its
// gradient. Holds the weights of one layer at a time in fp32. Borrows everything; one thread at a
// time.
class MlpHalf {
 public:
  MlpHalf(const Checkpoint& checkpoint, DenseAlgebra& algebra)
      : checkpoint_(checkpoint), config_(checkpoint.config()), algebra_(algebra) {}

  // NOT_FOUND names a tensor that the model lacks.
  absl::Status Load(int layer);

  // hidden [tokens, hidden], in place.
  void Forward(int64_t tokens, float* hidden);

  // `gradient` by the half's output becomes the gradient by its input, `hidden`, which is what
  // Forward was given.
  void Backward(int64_t tokens, const float* hidden, float* gradient);

 private:
  // Computes what the activation reads.
  void Project(int64_t tokens, const float* hidden);
  bool gated() const { return config_.activation == ActivationKind::kSiluGated; }
  // What the activation bends: the gate where there is one.
  std::vector<float>& bent() { return gated() ? gate_values_ : up_values_; }

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  DenseAlgebra& algebra_;
  DenseNorm norm_;
  DenseLinear gate_, up_, down_;  // gate_ with gated activations

  std::vector<float> normed_;                   // [T, hidden]; backwards its gradient
  std::vector<float> gate_values_, up_values_;  // [T, mlp]; backwards their gradients
  std::vector<float> activated_;                // [T, mlp]; backwards its gradient
};

}  // namespace latentd
