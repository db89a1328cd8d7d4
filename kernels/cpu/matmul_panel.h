#pragma once

#include <cstdint>

#include "kernels/cpu/activation_block.h"
#include "kernels/cpu/packed_weight.h"

namespace latentd {

// out[r * out_stride + 0 .. 15] = row r of the input times one panel of a quantised weight, for
// rows r of `in` [rows][k / 32]. A value is summed block after block, whatever the number of rows.
void QuantizedPanel(const PackedWeight& weight, int64_t panel, const ActivationBlock* in,
                    int64_t rows, float* out, int64_t out_stride);

// The same for an F32, F16 or BF16 weight and in [rows][k]. Four sums, over k mod 4, added at the
// end.
void PlainPanel(const PackedWeight& weight, int64_t panel, const float* in, int64_t rows,
                float* out, int64_t out_stride);

}  // namespace latentd
