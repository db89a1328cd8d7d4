#pragma once

#include <cmath>
#include <cstdint>
#include <vector>

#include "base/random.h"

namespace latentd {

// `count` draws of a Gaussian (Box-Muller), a function of (seed, index) alone.
inline std::vector<float> GaussianValues(int64_t count, uint64_t seed, float deviation = 1.0f) {
  std::vector<float> values(count);
  for (int64_t i = 0; i < count; ++i) {
    const double u = 1.0 - RandomUniform(seed, 2 * i), v = RandomUniform(seed, 2 * i + 1);
    values[i] = static_cast<float>(deviation * std::sqrt(-2.0 * std::log(u)) *
                                   std::cos(6.283185307179586 * v));
  }
  return values;
}

}  // namespace latentd
