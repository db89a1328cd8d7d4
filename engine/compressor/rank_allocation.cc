#include "engine/compressor/rank_allocation.h"

#include <algorithm>
#include <cmath>

#include "kernels/cache_layout.h"

namespace latentd {

std::vector<int> AllocateRanks(absl::Span<const double> importance, int full, double total) {
  const double most = *std::max_element(importance.begin(), importance.end());
  std::vector<double> weights(importance.size(), 1.0);
  // Never 0: once all others are full, a plane without importance takes what is left.
  for (size_t i = 0; most > 0 && i < weights.size(); ++i) {
    weights[i] = std::max(importance[i] / most, 1e-9);
  }
  const auto share = [&](size_t i, double factor) {
    return std::clamp(factor * weights[i], double{kTileDims}, static_cast<double>(full));
  };
  // The sum of the shares rises with the factor, from all at 16 to all full.
  double low = kTileDims, high = full * 1e9;
  for (int i = 0; i < 200; ++i) {
    const double middle = std::sqrt(low * high);
    double sum = 0;
    for (size_t p = 0; p < weights.size(); ++p) sum += share(p, middle);
    (sum < total ? low : high) = middle;
  }
  // Rounded so that every sum from the front is right to half a tile.
  std::vector<int> ranks;
  double exact = 0;
  int64_t given = 0;
  for (size_t p = 0; p < weights.size(); ++p) {
    exact += share(p, high);
    const int64_t tiles = std::llround(exact / kTileDims);
    ranks.push_back(static_cast<int>(tiles - given) * kTileDims);
    given = tiles;
  }
  return ranks;
}

}  // namespace latentd
