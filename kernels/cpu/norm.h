#pragma once

#include "kernels/cpu/thread_pool.h"
#include "kernels/params.h"

namespace latentd {

// Ops::Norm. Sums run in 32 partial sums over a row, folded at the end.
void CpuNorm(ThreadPool& pool, const NormParams& p);

}  // namespace latentd
