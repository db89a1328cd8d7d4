#pragma once

#include <cstdint>

#include "kernels/cuda/cuda_device.h"
#include "kernels/params.h"

namespace latentd {

// A number as bf16, to nearest even, on the host.
uint16_t ToBFloat16(float value);

// out[i] = in[i] as bf16, to nearest even.
void CudaToBFloat16(CudaDevice& device, const float* in, int64_t count, uint16_t* out);

// out[t] = bias (+ out[t]) of a product's rows: what the product is then added to.
void CudaStartFromBias(CudaDevice& device, const Product& product, int64_t rows);

}  // namespace latentd
