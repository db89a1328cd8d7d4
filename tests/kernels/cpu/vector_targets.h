#pragma once

#include <functional>

#include "gtest/gtest.h"
#include "hwy/targets.h"

namespace latentd {

// Runs `body` once for each kind of vectors that this machine has, the emulated one included.
// Vectors are chosen anew after.
inline void ForEachVectorTarget(const std::function<void()>& body) {
  constexpr int64_t kTargets[] = {HWY_AVX3_DL, HWY_AVX3, HWY_AVX2, HWY_NEON, HWY_EMU128};
  const int64_t supported = hwy::SupportedTargets();
  for (const int64_t target : kTargets) {
    if (target != HWY_EMU128 && (target & supported) == 0) continue;
    SCOPED_TRACE(hwy::TargetName(target));
    hwy::GetChosenTarget().Update(target);
    body();
  }
  hwy::GetChosenTarget().DeInit();
}

}  // namespace latentd
