#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/compressor/attention_gradient.h"
#include "engine/compressor/dense_algebra.h"

namespace latentd {

// The attention half of any layer, hidden += o(attention(norm(hidden))), over one window of T
// tokens, and its gradient. Holds the weights of one layer at a time in fp32. Borrows everything;
// one thread at a time.
class AttentionHalf {
 public:
  // For windows of up to `max_tokens` tokens.
  AttentionHalf(const Checkpoint& checkpoint, int max_tokens, DenseAlgebra& algebra);

  // NOT_FOUND names a tensor that the model lacks.
  absl::Status Load(int layer);

  // hidden [tokens, hidden], in place.
  void Forward(int64_t tokens, float* hidden);

  // `gradient` by the half's output becomes the gradient by its input, `hidden`, which is what
  // Forward was given.
  void Backward(int64_t tokens, const float* hidden, float* gradient);

  // Of the latest Forward or Backward, until the next: the projections' input [tokens, hidden] and
  // their outputs before bias, QK-norm and RoPE [tokens, kv_dim].
  const float* input() const { return input_.data(); }
  const float* k_output() const { return k_output_.data(); }
  const float* v_output() const { return v_output_.data(); }
  // Of the latest Backward: the gradients by k_output and v_output.
  const float* k_gradient() const { return dk_.data(); }
  const float* v_gradient() const { return dv_.data(); }

 private:
  // Computes the projections, and the q, k and v that attention sees.
  void Project(int64_t tokens, const float* hidden);
  // Norms (with QK-norm) and rotates (with RoPE) heads in place; `raw` keeps what was normed.
  void PlaceHeads(const DenseNorm& norm, int64_t tokens, int heads, std::vector<float>* raw,
                  float* x);
  void PlaceHeadsBackward(const DenseNorm& norm, int64_t tokens, int heads,
                          const std::vector<float>& raw, float* dx);

  const Checkpoint& checkpoint_;
  const ModelConfig& config_;
  DenseAlgebra& algebra_;
  RopeTable rope_;  // no pairs without RoPE
  AttentionGradient attention_;

  DenseNorm norm_, q_norm_, k_norm_;    // the latter two with QK-norm
  DenseLinear q_, k_, v_, o_;           // k and v without their biases,
  std::vector<float> k_bias_, v_bias_;  // which are here

  std::vector<float> input_, k_output_, v_output_;
  std::vector<float> q_heads_, k_heads_, v_heads_;  // what attention sees
  std::vector<float> q_raw_, k_raw_;                // before QK-norm
  std::vector<float> attended_;                     // forwards; backwards its gradient, then q's
  std::vector<float> dk_, dv_, dinput_;
};

}  // namespace latentd
