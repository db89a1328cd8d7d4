#pragma once

#include <cstdint>

#include "kernels/cache_layout.h"

namespace latentd {

// WriteCacheRow for one token of one latent head: the same bytes. `decoded` [plane.dims()], unless
// null, gets what ReadCacheRow would read back, bit for bit. A token's codes of one tile are whole
// bytes, so threads may write different tokens of a block.
void PackRow(const CachePlane& plane, const float* values, int token, uint8_t* head,
             float* decoded);

// count fp16 values, rounded to nearest even.
void PackHalves(const float* values, int64_t count, uint16_t* halves);

}  // namespace latentd
