#pragma once

#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/latents_file.h"
#include "kernels/ops.h"

namespace latentd {

// In the device's memory, as all that a step reads.
struct NormWeights {
  DeviceArray<float> weight;  // [dims]
  DeviceArray<float> bias;    // [dims], or empty
};

// A matrix and its bias, in the backend's order. Empty where the model has none.
struct LinearWeights {
  std::unique_ptr<Weight> weight;  // [out, in]
  DeviceArray<float> bias;         // [out], or empty
};

// With latents, k and v are the down projections, whose biases take the means out; the up
// projections, the offsets and the projections' own biases are in `attention`. Exact sinks come
// from sink_k and sink_v, the base model's projections, which are empty where a layer keeps no
// sinks.
struct LayerWeights {
  NormWeights attention_norm, mlp_norm;
  NormWeights q_norm, k_norm;  // [head_dim]; empty without QK-norm
  LinearWeights q, k, v, o;
  LinearWeights sink_k, sink_v;
  LinearWeights gate, up, down;  // gate is empty for ungated activations
  std::unique_ptr<AttentionPlan> attention;
};

// A table whose rows Ops::Embed looks up: in the mapped file where the device reads that, else in a
// copy of its values in fp16.
struct EmbeddingTable {
  TensorView view;
  DeviceArray<uint16_t> copy;
};

// Everything of a model that a step reads. Immutable after loading.
struct ModelWeights {
  EmbeddingTable token_embedding;
  EmbeddingTable position_embedding;  // learned positions; no data otherwise
  NormWeights embedding_norm;         // empty where there is none
  std::vector<LayerWeights> layers;
  NormWeights final_norm;
  LinearWeights lm_head;
  std::unique_ptr<RopeTable> rope;  // null where positions are not rotations
  int64_t bytes = 0;                // of the model's prepared matrices and copied tables
};

// What the cache of each layer holds: the latents file's planes, or a full cache in `full_codec`.
std::vector<CacheLayer> CacheLayersOf(const ModelConfig& config, const Latents* latents,
                                      Codec full_codec);

struct WeightOptions {
  const Latents* latents = nullptr;  // null: a full cache
  Codec full_codec = Codec::kF16;    // of the full cache
  int max_context = 0;               // for which RoPE scalings that depend on the context are fixed
  int max_positions = 0;             // that will be computed: the rows of the RoPE table
};

// Prepares every weight and every layer's attention for `ops`. NOT_FOUND names a missing tensor;
// UNIMPLEMENTED a type or path that the backend has no kernel for; INVALID_ARGUMENT a latent
// layer's factor or bias that is not finite. RESOURCE_EXHAUSTED: the device computes in the
// machine's memory, and the weights take more than that.
absl::StatusOr<ModelWeights> LoadWeights(const Checkpoint& checkpoint, const WeightOptions& options,
                                         Ops& ops);

}  // namespace latentd
