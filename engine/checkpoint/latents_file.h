#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "kernels/cache_layout.h"

namespace latentd {

// The factors of one layer. s = num_kv_heads / latent_heads KV heads share a latent head.
struct LatentLayer {
  CacheLayer cache;
  TensorView k_down;  // [latent_heads * k.dims(), hidden], F16 or F32
  TensorView k_up;    // [latent_heads * s * head_dim, k.dims()]: rows of latent head 0, then 1, ...
  TensorView v_down;  // [latent_heads * v.dims(), hidden]
  TensorView v_up;    // [latent_heads * s * head_dim, v.dims()]
};

// A latents file: a safetensors file with the factors of every layer as tensors "layers.N.k_down",
// "layers.N.k_up", "layers.N.v_down" and "layers.N.v_up", and as metadata "latentd" the JSON
//
//   {version, fingerprint, method, layers: [{k: plane, v: plane}, ...]}
//   plane = {latent_heads, segments: [[dims, codec], ...]}
//
// It belongs to one base model and leaves that unchanged. Immutable, thread-safe.
class LatentsFile {
 public:
  // Opens and checks the file against the base model: FAILED_PRECONDITION with both fingerprints
  // when it belongs to another; INVALID_ARGUMENT naming the tensor and both numbers when it is
  // damaged.
  static absl::StatusOr<std::unique_ptr<LatentsFile>> Open(const std::string& path,
                                                           const Checkpoint& base);

  const std::vector<LatentLayer>& layers() const { return layers_; }
  // For people: "palu, rate 0.5, 4 bits, groups of all KV heads".
  const std::string& method() const { return method_; }

 private:
  LatentsFile() = default;
  std::shared_ptr<const void> storage_;
  std::vector<LatentLayer> layers_;
  std::string method_;
};

// What a latents file is written from. Tensors are borrowed.
struct LatentsContents {
  std::string fingerprint;  // of the base model
  std::string method;
  std::vector<LatentLayer> layers;
};

// Writes the file whole or not at all (AtomicFile).
absl::Status WriteLatentsFile(const std::string& path, const LatentsContents& contents);

}  // namespace latentd
