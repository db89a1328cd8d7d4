#pragma once

#include "kernels/cpu/scratch.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/params.h"

namespace latentd {

// Ops::Matmul. Every product's weight is a PackedWeight. With quantised weights the input is
// quantised once per row, in blocks of 32, and shared by all products; their panels form one
// parallel region.
void CpuMatmul(ThreadPool& pool, Scratch& scratch, const MatmulParams& p);

}  // namespace latentd
