#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
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
  // laid out as `layout` says. RESOURCE_EXHAUSTED when the activations find no memory.
  absl::Status Forward(const Batch& batch, const CacheLayout& layout, uint8_t* pool);

  // Logits [rows.size(), vocab] of rows of the latest Forward, in the device's memory; valid until
  // the next call.
  absl::StatusOr<const float*> Logits(absl::Span<const int32_t> rows);

 private:
  CacheView ViewOf(int layer, const Batch& batch, const CacheLayout& layout, uint8_t* pool,
                   absl::Span<const int32_t> first_step_page);
  // Of the batch's rows those that some layer keeps as exact sinks.
  int CountSinkRows(const Batch& batch) const;
  // All activations of a step but those of Logits.
  absl::Status Reserve(int64_t rows, int64_t sink_rows, int64_t step_pages,
                       const CacheLayout& layout);
  void Embed(const Batch& batch);
  void Attend(int layer, const Batch& batch, const CacheView& cache);
  void ProjectSinks(int layer, absl::Span<const int32_t> positions);
  void PlaceHeads(const NormWeights& norm, absl::Span<const int32_t> positions, int heads,
                  float* x);
  void Mlp(int layer, int64_t rows);
  NormParams NormOf(const NormWeights& norm, int64_t rows, const float* in, float* out) const;

  const ModelConfig& config_;
  const ModelWeights& weights_;
  Ops& ops_;

  DeviceArray<float> hidden_;     // [T, hidden]: the residual stream
  DeviceArray<float> normed_;     // [T, hidden], or unwritten: what products take in
  DeviceArray<float> q_, k_, v_;  // [T, ...] projections
  DeviceArray<float> attended_;   // [T, q_dim]
  DeviceArray<float> gate_, up_;  // [T, mlp_dim]
  DeviceArray<float> gathered_;   // [L, hidden]
  DeviceArray<float> logits_;     // [L, vocab]

  // The step's rows at positions below a layer's sinks.
  std::vector<int32_t> sink_rows_, sink_positions_;  // [n]
  DeviceArray<float> sink_hidden_;                   // [n, hidden]
  DeviceArray<float> sink_k_, sink_v_;               // [n, kv_dim]
  DeviceArray<uint8_t> step_pages_;  // CacheView::step_pages, used by one layer after the other
};

}  // namespace latentd
