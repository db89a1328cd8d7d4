#pragma once

#include <cstdint>

namespace latentd {

// 32 consecutive activations of one row as the products with quantised weights read them: symmetric
// int8, value = scale * code, scale = (largest magnitude) / 127. A block with a NaN or an infinity
// has a NaN scale, so that it is seen, not hidden.
struct alignas(64) ActivationBlock {
  int8_t codes[32];
  float scale;
  float scaled_sum;           // scale * (sum of the codes)
  int32_t minus_sum;          // of the codes
  int32_t minus_half_sum[2];  // of the first and of the last 16 codes
};

// The blocks of one row of k values, k a multiple of 32. A function of the row alone.
void QuantizeActivations(const float* row, int64_t k, ActivationBlock* blocks);

}  // namespace latentd
