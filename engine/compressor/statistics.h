#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/compressor/calibration.h"
#include "engine/compressor/dense_algebra.h"
#include "engine/compressor/matrix.h"

namespace latentd {

// What a calibration text says about one layer's keys or values, y = W x: the projection of one
// token before its bias, QK-norm and RoPE, all KV heads ([kv_dim]). Means over the tokens of the
// windows but their first `sinks` ones.
struct PlaneStatistics {
  Matrix second_moment;      // E[y y^T], not centred
  std::vector<double> mean;  // E[y]
  // E[g g^T], g the gradient of the loss with respect to one token's y. The loss is the sum of the
  // negative log likelihoods of a window's positions, in nats, so half of the F-weighted error,
  // summed over layers and planes, is a KL in nats per predicted token.
  Matrix fisher;
  // Of the gradient G = sum over a window's tokens of g x^T with respect to W (Palu's importance):
  double weight_fisher_sum = 0;  // sum over windows and entries of G^2 (the paper, section 3.3)
  double weight_fisher_rms = 0;  // mean over entries of sqrt(mean over windows of G^2) (its code)
};

struct LayerStatistics {
  PlaneStatistics k, v;
};

struct StatisticsOptions {
  int sinks = 0;  // first tokens of each window that are left out
  enum class Gradients : uint8_t {
    kNone,     // moments and means alone: one forward pass
    kSampled,  // `fisher`: labels drawn from the model's own prediction (the true Fisher matrix)
    kText,     // `weight_fisher_*`: the text's own next tokens, as Palu does
  };
  Gradients gradients = Gradients::kNone;
  uint64_t seed = 0;  // of the drawn labels
  // Where the work so far is kept, so that it goes on after a kill (written now and then, whole or
  // not at all; removed by the caller once the latents are written). Empty: nowhere.
  std::string resume_path;
};

// Runs the uncompressed model forwards and, for gradients, backwards over the windows in fp32 on
// dequantised weights, one window after the other and layer by layer: the inputs of both halves of
// all layers are kept, what a half computes is computed again on the way back. So memory is one
// half's activations and weights in fp32, 2 x layers x window x hidden floats for one window, and
// the sums: per layer and plane one (kNone) or two (kSampled) [kv_dim, kv_dim] matrices of doubles,
// or one and a [kv_dim, hidden] (kText). The same windows and options give the same bits for every
// number of threads, interrupted or not. `progress` is called once a layer on each way; when it
// ends the work, the sums are saved first, and of the windows that are done nothing is lost.
//
// INVALID_ARGUMENT when a window is longer than the model's context, or has no token past the sinks
// or one outside the vocabulary; FAILED_PRECONDITION when resume_path holds the work of another
// model, text or option, or is damaged; INTERNAL when the model's logits are not finite.
absl::StatusOr<std::vector<LayerStatistics>> MeasureStatistics(const Checkpoint& checkpoint,
                                                               const CalibrationWindows& windows,
                                                               const StatisticsOptions& options,
                                                               DenseAlgebra& algebra,
                                                               const Progress& progress);

}  // namespace latentd
