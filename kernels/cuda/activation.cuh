#pragma once

#include "kernels/params.h"

namespace latentd {

// Ops::Activation of one value.
__device__ inline float Activated(ActivationKind kind, float gate, float up) {
  if (kind == ActivationKind::kSiluGated) return gate / (1.0f + expf(-gate)) * up;
  const float inner = 0.7978845608f * (gate + 0.044715f * gate * gate * gate);  // sqrt(2 / pi)
  return 0.5f * gate * (1.0f + tanhf(inner));
}

}  // namespace latentd
