#pragma once

#include <cstdint>

namespace latentd {

// Counter-based random numbers: a pure function of (seed, counter), so that a draw never depends on
// how many were made before it. The mixer is SplitMix64's finaliser (Steele, Lea, Flood, OOPSLA
// 2014) applied to both words.
inline uint64_t RandomBits(uint64_t seed, uint64_t counter) {
  auto mix = [](uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  };
  return mix(mix(seed + 0x9e3779b97f4a7c15ull) + (counter + 1) * 0x9e3779b97f4a7c15ull);
}

// Uniform in [0, 1), 24 bits.
inline float RandomUniform(uint64_t seed, uint64_t counter) {
  return static_cast<float>(RandomBits(seed, counter) >> 40) * 0x1p-24f;
}

}  // namespace latentd
