#pragma once

#include "kernels/cpu/thread_pool.h"
#include "kernels/params.h"

namespace latentd {

// Ops::Rope.
void CpuRope(ThreadPool& pool, const RopeParams& p);

}  // namespace latentd
