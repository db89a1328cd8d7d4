#include "engine/model/alibi.h"

#include <bit>
#include <cmath>

namespace latentd {

std::vector<float> AlibiSlopes(int num_heads, float bias_max) {
  const int power = static_cast<int>(std::bit_floor(static_cast<unsigned>(num_heads)));
  std::vector<float> slopes;
  const auto add = [&](int step, int steps) {
    const double exponent = -static_cast<double>(bias_max) * step / steps;
    slopes.push_back(static_cast<float>(std::exp2(exponent)));
  };
  for (int h = 0; h < power; ++h) add(h + 1, power);
  for (int h = power; h < num_heads; ++h) add(2 * (h - power) + 1, 2 * power);
  return slopes;
}

}  // namespace latentd
