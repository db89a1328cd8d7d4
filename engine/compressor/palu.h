#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/latents_file.h"
#include "engine/compressor/matrix.h"

namespace latentd {

// A projection W [s * head_dim, hidden] of s KV heads in two factors: W x ~ up (down x).
struct Factors {
  Matrix down;         // [latent_dim, hidden]
  Matrix up;           // [s * head_dim, latent_dim]
  double energy_kept;  // share of E|W x|^2 that the factors keep, in [0, 1]
};

// The best factors of rank `latent_dim` for inputs of second moment `moment` = E[x x^T]: they
// minimise E|W x - up down x|^2. SVD-LLM's truncation-aware whitening (arXiv 2403.07378, 3.1),
// which Palu uses (arXiv 2407.21118, 3.2), without a root of the moment: with the eigenvectors U of
// W E[x x^T] W^T, the answer is U_r U_r^T W. Each side takes the square root of the singular
// values.
absl::StatusOr<Factors> Factorize(const Matrix& weight, const Matrix& moment, int latent_dim);

// Turns the latent by an orthogonal matrix, so that its dims share their range before low-bit
// codes; up x down is unchanged.
void Rotate(const Matrix& rotation, Factors* factors);

// The paper's method as it is: one share of dims cut everywhere, one bit width.
struct PaluOptions {
  double rate = 0.5;  // share of dims cut, in [0, 1)
  // 32 and 16 (floating point), 8 (symmetric grid), 4, 3, 2 (min-max, as the paper)
  int bits = 4;
  // KV heads that share a latent: 1 is the paper's M-LRD, all J-LRD, between G-LRD
  int heads_per_group = 0;
  bool hadamard = true;
};

// The heads of a group that `text` asks for: "all", a number, or empty for the largest divisor of
// the KV heads up to 4 (the paper's default), all where that is 1. INVALID_ARGUMENT for other text.
absl::StatusOr<int> HeadsPerGroup(std::string_view text, int num_kv_heads);

// INVALID_ARGUMENT names the flag, its value and what is allowed for this model.
absl::Status Validate(const PaluOptions& options, const ModelConfig& config);

// Dims of a latent head after cutting `rate` of them: the nearest multiple of 16, at least 16.
int LatentDims(const PaluOptions& options, const ModelConfig& config);

// For people: "palu, rate 0.5, 4 bits, groups of all KV heads".
std::string Describe(const PaluOptions& options, const ModelConfig& config);

// The K or V factors of one layer as numbers of a latents file: F32 for 32 bits, F16 otherwise.
struct PlaneFactors {
  CachePlane plane;
  DType dtype = DType::kF16;
  std::vector<uint8_t> down;  // [latent_heads * dims, hidden]
  std::vector<uint8_t> up;    // [latent_heads * s * head_dim, dims]
  double energy_kept = 0;     // share, the mean over the latent heads

  TensorView DownView(int64_t hidden_dim) const;
  TensorView UpView() const;
};

struct LayerFactors {
  PlaneFactors k, v;

  LatentLayer View(int64_t hidden_dim) const;  // borrows the numbers
};

// Factorises layer `layer`'s projections for inputs of second moment `moment` [hidden, hidden].
// `options` are valid for the model.
absl::StatusOr<LayerFactors> FactorizeLayer(const Checkpoint& checkpoint, int layer,
                                            const Matrix& moment, const PaluOptions& options);

}  // namespace latentd
