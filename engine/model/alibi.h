#pragma once

#include <vector>

namespace latentd {

// The slopes of the heads' ALiBi penalties, [num_heads], all positive. For a power of two head h
// (from 0) has 2^(-bias_max (h + 1) / num_heads) (Press et al. 2022, section 3). Otherwise the
// first heads take the slopes of the largest power of two below num_heads, and the others every
// second slope of twice that power, from its first on (the authors' code; BLOOM and MPT do the
// same).
std::vector<float> AlibiSlopes(int num_heads, float bias_max);

}  // namespace latentd
