#pragma once

#include "kernels/cpu/thread_pool.h"
#include "kernels/params.h"

namespace latentd {

// Ops::Activation. The exponential is Highway's (about 1 ulp).
void CpuActivation(ThreadPool& pool, const ActivationParams& p);

}  // namespace latentd
