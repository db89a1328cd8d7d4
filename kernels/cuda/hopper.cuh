#pragma once

#include <cstdint>

#include "kernels/cuda/async_copy.cuh"

namespace latentd {

// What compute capability 9.0a adds: barriers that count bytes, bulk copies, and products of a
// warpgroup (four warps). Kernels that use them are empty for other GPUs.
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define LATENTD_HOPPER 1
#endif

// A barrier in shared memory. It passes from phase to phase; a phase ends when `arrivals` have come
// and the bytes that were announced are there.
class PhaseBarrier {
 public:
  __device__ void Init(int arrivals) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(SharedAddress(&state_)),
                 "r"(arrivals));
  }
  // As so many threads.
  __device__ void Arrive(int times = 1) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;\n" ::"r"(SharedAddress(&state_)),
                 "r"(times)
                 : "memory");
  }
  // Arrives, and announces bytes that bulk copies will bring.
  __device__ void Expect(int bytes) {
    asm volatile(
        "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;\n" ::"r"(SharedAddress(&state_)),
        "r"(bytes)
        : "memory");
  }
  // Waits for the end of phase `phase`, counted from 0: the current one or the one before. Whoever
  // does not wait for every phase must know otherwise that the one before `phase` has ended.
  __device__ void Wait(int phase) {
    asm volatile(
        "{\n"
        ".reg .pred done;\n"
        "again:\n"
        "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
        "@!done bra again;\n"
        "}\n" ::"r"(SharedAddress(&state_)),
        "r"(phase & 1)
        : "memory");
  }
  __device__ uint32_t address() { return SharedAddress(&state_); }

 private:
  uint64_t state_;
};

// Makes initialised barriers known to bulk copies.
__device__ inline void FenceBarriers() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}

// After a thread's own writes to shared memory, before the barrier behind which a bulk copy to the
// same place begins.
__device__ inline void FenceBulkCopies() {
  asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory");
}

// Copies a multiple of 16 bytes to shared memory in the background; both are aligned to 16.
__device__ inline void BulkCopy(void* to, const void* from, int bytes, PhaseBarrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];\n" ::
          "r"(SharedAddress(to)),
      "l"(from), "r"(bytes), "r"(barrier.address())
      : "memory");
}

// The same of what a step reads once (kReadOnce).
__device__ inline void BulkCopyOnce(void* to, const void* from, int bytes, PhaseBarrier& barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "
      "[%1], %2, [%3], %4;\n" ::"r"(SharedAddress(to)),
      "l"(from), "r"(bytes), "r"(barrier.address()), "l"(kReadOnce)
      : "memory");
}

// The warpgroup takes, or leaves, registers: each of its threads has so many from here on.
#ifdef LATENTD_HOPPER
template <int kRegisters>
__device__ inline void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ inline void LeaveRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(kRegisters));
}
#endif

// ---- Products of a warpgroup: D [64][64] += A [64][32] B [32][64], int8 in, int32 out.
// A is four registers of each thread, four values each: lane l of warp w has the rows 16 w + l / 4
// and 8 below, columns 4 (l % 4) and 16 after: row, row + 8, then the same of the later columns.
// D: registers 4 i and 4 i + 1 are columns 8 i + 2 (l % 4) and the next one of the row,
// 4 i + 2 and 4 i + 3 those of the row + 8.
// Or D [64][64] += A [64][16] B [16][64], fp16 in, fp32 out: for two int8 values above one half.

// Where B begins in shared memory: rows of 128 bytes, of which a product takes 32, for each of the
// columns, 16-byte parts exchanged: part p of row n lies at p ^ (n % 8). `at` is aligned to 1024,
// but for a multiple of 32 below 128: where the 32 begin. A step of kOperandUnit bytes adds 1.
constexpr int kOperandUnit = 16;
__device__ inline uint32_t RightOperand(uint32_t at) {
  return (at & 0x3FFFFu) / kOperandUnit | 1u << 16;
}

#ifdef LATENTD_HOPPER
__device__ inline void BeginProducts() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ inline void EndProducts() {
  asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory");
}
// Waits for all groups of products but the newest kNewest.
template <int kNewest>
__device__ inline void WaitForProducts() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(kNewest) : "memory");
}

#define LATENTD_D4(c, i) "+" c(d[i]), "+" c(d[i + 1]), "+" c(d[i + 2]), "+" c(d[i + 3])
#define LATENTD_D16(c, i) \
  LATENTD_D4(c, i), LATENTD_D4(c, i + 4), LATENTD_D4(c, i + 8), LATENTD_D4(c, i + 12)
#define LATENTD_PRODUCT(types, c, signs)                                                         \
  constexpr uint32_t kHigh = 1024 / kOperandUnit | 1u << 30; /* 8 columns on; parts exchanged */ \
  asm volatile(                                                                                  \
      "{\n"                                                                                      \
      ".reg .pred add;\n"                                                                        \
      ".reg .b64 b;\n"                                                                           \
      "setp.ne.b32 add, %38, 0;\n"                                                               \
      "mov.b64 b, {%36, %37};\n"                                                                 \
      "wgmma.mma_async.sync.aligned." types                                                      \
      " {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "                 \
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "        \
      "{%32, %33, %34, %35}, b, add" signs                                                       \
      ";\n"                                                                                      \
      "}\n"                                                                                      \
      : LATENTD_D16(c, 0), LATENTD_D16(c, 16)                                                    \
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(kHigh), "r"(add ? 1 : 0))
// `add`: whether D is added to; it is overwritten otherwise.
__device__ inline void MultiplyAdd(int32_t (&d)[32], const uint32_t (&a)[4], uint32_t b, bool add) {
  LATENTD_PRODUCT("m64n64k32.s32.s8.s8", "r", "");
}
__device__ inline void MultiplyAdd(float (&d)[32], const uint32_t (&a)[4], uint32_t b, bool add) {
  LATENTD_PRODUCT("m64n64k16.f32.f16.f16", "f", ", 1, 1, 0");  // neither negated nor transposed
}
#undef LATENTD_PRODUCT
#undef LATENTD_D16
#undef LATENTD_D4
#endif

}  // namespace latentd
