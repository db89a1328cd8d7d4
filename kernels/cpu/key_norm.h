#pragma once

#include <cstdint>

namespace latentd {

// The norm of one KV head's rebuilt keys.
struct KeyNormFactors {
  const float* k_up = nullptr;    // [head_dim][dims], before k_norm
  const float* k_bias = nullptr;  // [head_dim]
  int head_dim = 0;
  int dims = 0;  // a multiple of 16
  float epsilon = 0.0f;
};

// norms[t] = 1 / sqrt(mean((k_up latents[t] + k_bias)^2) + epsilon) as fp16, at most kMaxKeyNorm;
// NaN or 0 where the latent has a NaN or an infinity. A function of the token's latent alone,
// within one unit in the last place of the reference. latents [tokens][latent_stride].
void InverseKeyNorms(const KeyNormFactors& factors, const float* latents, int64_t latent_stride,
                     int tokens, uint16_t* norms);

// Tokens that share each factor's way from memory; more bring no gain.
inline constexpr int kKeyNormTokens = 16;

}  // namespace latentd
