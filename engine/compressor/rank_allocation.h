#pragma once

#include <vector>

#include "absl/types/span.h"

namespace latentd {

// Multiples of 16, from 16 to `full` (itself a multiple) each, that sum to the multiple of 16
// nearest to `total`: in proportion to `importance` (>= 0; all alike when it is 0 everywhere). What
// a plane cannot take for being full, or takes more for being at 16, is shared out among the others
// in proportion. Each is at most 16 from its exact share. `total` lies in [16, full] per plane.
std::vector<int> AllocateRanks(absl::Span<const double> importance, int full, double total);

}  // namespace latentd
