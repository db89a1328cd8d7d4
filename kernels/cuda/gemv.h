#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_device.h"
#include "kernels/params.h"

namespace latentd {

// Products of so few rows that reading the weights is all their time: one launch for up to four
// that share an input, with the norm before them and the activation after, between which nothing
// goes through the device's memory. Inputs are rounded to bf16 as for the tensor cores; sums are
// fp32, in an order of their own.
inline constexpr int64_t kMostGemvRows = 4;
// Whether a multiprocessor has room for the inputs of so many rows, k values each.
bool FitsGemv(const CudaDevice& device, int64_t rows, int64_t k);
void CudaGemv(CudaDevice& device, const MatmulParams& p);

}  // namespace latentd
