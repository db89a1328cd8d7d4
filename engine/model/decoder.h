#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/batch.h"
#include "engine/model/model_config.h"
#include "engine/model/weights.h"
#include "kernels/ops.h"

namespace latentd {

// The transformer: one pass through all layers for a batch's rows. Families differ by the data in
// ModelConfig alone. Borrows everything; owns the activations, which grow to the largest batch
// seen. One thread at a time.
class Decoder {
 public:
  Decoder(const ModelConfig& config, const ModelWeights& weights, Ops& ops)
      : config_(config), weights_(weights), ops_(ops) {}

  // Computes the final hidden states of the batch's rows and writes their cache rows. `pool` is
  // laid out as `layout` says.
  void Forward(const Batch& batch, const CacheLayout& layout, uint8_t* pool);

  // Logits [rows.size(), vocab] of rows of the latest Forward; valid until the next call.
  const float* Logits(absl::Span<const int32_t> rows);

 private:
  CacheView ViewOf(int layer, const Batch& batch, const CacheLayout& layout, uint8_t* pool,
                   absl::Span<const int32_t> first_step_page);
  void Attend(int layer, const Batch& batch, const CacheView& cache);
  void ProjectSinks(int layer, absl::Span<const int32_t> positions);
  void PlaceHeads(const NormWeights& norm, absl::Span<const int32_t> positions, int heads,
                  float* x);
  void Mlp(int layer, int64_t rows);
  void Norm(const NormWeights& norm, int64_t rows, const float* in, float* out);

  const ModelConfig& config_;
  const ModelWeights& weights_;
  Ops& ops_;

  // A piece of memory for a CacheView: aligned as it asks.
  struct alignas(64) CacheLine {
    uint8_t bytes[64];
  };

  std::vector<float> hidden_;     // [T, hidden]: the residual stream
  std::vector<float> normed_;     // [T, hidden]
  std::vector<float> q_, k_, v_;  // [T, ...] projections
  std::vector<float> attended_;   // [T, q_dim]
  std::vector<float> gate_, up_;  // [T, mlp_dim]
  std::vector<float> gathered_;   // [L, hidden]
  std::vector<float> logits_;     // [L, vocab]

  // Of the step's rows at positions below a layer's sinks.
  std::vector<int32_t> sink_positions_;  // [n]
  std::vector<float> sink_normed_;       // [n, hidden]
  std::vector<float> sink_k_, sink_v_;   // [n, kv_dim]
  std::vector<CacheLine> step_pages_;    // CacheView::step_pages, used by one layer after the other
};

}  // namespace latentd
