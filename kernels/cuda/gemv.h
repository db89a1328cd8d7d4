#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_device.h"
#include "kernels/params.h"

namespace latentd {

// Products of so few rows that reading the weights is all their time: one launch for all that share
// an input, which also rounds it and adds biases and what `out` holds. The input is rounded to bf16
// as for the tensor cores; sums are fp32, in an order of their own.
inline constexpr int64_t kMostGemvRows = 4;
void CudaGemv(CudaDevice& device, const MatmulParams& p);

}  // namespace latentd
