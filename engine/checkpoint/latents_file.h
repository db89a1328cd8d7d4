#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "kernels/cache_layout.h"

namespace latentd {

// The factors of one layer. s = num_kv_heads / latent_heads KV heads share a latent head. A token's
// latent is h = down x - mean, what attention sees is up h + offset (+ the projection's bias).
struct LatentLayer {
  CacheLayer cache;
  TensorView k_down;  // [latent_heads * k.dims(), hidden]; in a file F16 or F32
  TensorView k_up;    // [latent_heads * s * head_dim, k.dims()]: rows of latent head 0, then 1, ...
  TensorView v_down;  // [latent_heads * v.dims(), hidden]
  TensorView v_up;    // [latent_heads * s * head_dim, v.dims()]
  // Means taken out of the codes, F32; without data where they are zero.
  TensorView k_mean;    // [1, latent_heads * k.dims()]
  TensorView k_offset;  // [1, num_kv_heads * head_dim]
  TensorView v_mean;    // [1, latent_heads * v.dims()]
  TensorView v_offset;  // [1, num_kv_heads * head_dim]
};

// A model's latent cache: the factors of every layer and how they were made. Immutable once made,
// thread-safe.
struct Latents {
  std::vector<LatentLayer> layers;
  // For people: "palu, rate 0.5, 4 bits, groups of all KV heads".
  std::string method;
  // Hashes of the text that the latents were calibrated on (engine/text/shingles.h), ascending;
  // empty where there was none to keep. A test text that shares them measures nothing.
  std::vector<uint32_t> shingles;
  std::shared_ptr<const void> storage;  // of the views
};

// A latents file: a safetensors file with the factors of every layer as tensors "layers.N.k_down",
// "layers.N.k_up", "layers.N.v_down", "layers.N.v_up" and, for each plane that has them,
// "layers.N.k_mean" and "layers.N.k_offset", and as metadata "latentd" the JSON
//
//   {version, fingerprint, checksum, method, sinks, own_page, shingles,
//    layers: [{k: plane, v: plane}, ...]}
//   plane = {latent_heads, segments: [[dims, codec], ...]}
//
// Every number of a tensor is between -65504 and 65504, the largest in 16 bits. The checksum is a
// Hash128 of the tensors, layer after layer, in the order above. The file belongs to
// one base model and leaves that unchanged.
//
// Opens and checks the file against the base model: FAILED_PRECONDITION with both fingerprints when
// it belongs to another; INVALID_ARGUMENT naming the tensor and both numbers when it is damaged, or
// DATA_LOSS with both checksums.
// Reads the whole file once.
absl::StatusOr<std::unique_ptr<Latents>> OpenLatents(const std::string& path,
                                                     const Checkpoint& base);

// Writes the file whole or not at all (AtomicFile). All layers have the same sinks and own_page.
absl::Status WriteLatents(const std::string& path, const std::string& fingerprint,
                          const Latents& latents);

}  // namespace latentd
