#pragma once

#include "kernels/cpu/thread_pool.h"
#include "kernels/params.h"

namespace latentd {

// Ops::Embed, for a table of any stored type.
void CpuEmbed(ThreadPool& pool, const EmbedParams& p);

}  // namespace latentd
