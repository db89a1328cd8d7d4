#pragma once

#include <cstdint>

namespace latentd {

// Copies to shared memory in the background, of sm_80 and later. A thread's copies are groups,
// which end in order.

__device__ inline uint32_t SharedAddress(const void* at) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(at));
}

// Begins to copy 16 bytes, both aligned to them.
__device__ inline void BeginCopy(uint32_t to, const uint8_t* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(from));
}
// How the second-level cache takes what a step reads once: it is given up before all else, so that
// kernels' code and factors stay. What createpolicy.fractional.L2::evict_first makes of 1.
inline constexpr uint64_t kReadOnce = 0x12F0000000000000;
__device__ inline void BeginCopyOnce(uint32_t to, const uint8_t* from) {
  asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2;\n" ::"r"(to),
               "l"(from), "l"(kReadOnce));
}
__device__ inline void EndCopies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Waits for all groups of the thread's but the newest kNewest.
template <int kNewest>
__device__ inline void WaitForCopies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kNewest) : "memory");
}

// Brings the line at `from` to the second-level cache in the background.
__device__ inline void Prefetch(const void* from) {
  asm volatile("prefetch.global.L2 [%0];\n" ::"l"(from));
}

// `threads` of a block, whole warps, wait for one another; id in [1, 16).
__device__ inline void WaitForOthers(int id, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(id), "r"(threads) : "memory");
}

}  // namespace latentd
