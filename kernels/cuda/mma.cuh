#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "kernels/cuda/async_copy.cuh"

namespace latentd {

// x & mask | bits, and x & mask ^ bits, as one instruction: of two constants the compiler makes
// two.
__device__ inline uint32_t AndOr(uint32_t x, uint32_t mask, uint32_t bits) {
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0xEA;\n" : "=r"(out) : "r"(x), "r"(mask), "r"(bits));
  return out;
}
__device__ inline uint32_t AndXor(uint32_t x, uint32_t mask, uint32_t bits) {
  uint32_t out;
  asm("lop3.b32 %0, %1, %2, %3, 0x6A;\n" : "=r"(out) : "r"(x), "r"(mask), "r"(bits));
  return out;
}

// Of the bytes of x, then of y, those that the nibbles of `picks` name; with 8 added, the byte's
// highest bit eight times.
__device__ inline uint32_t PickBytes(uint32_t x, uint32_t y, uint32_t picks) {
  uint32_t out;
  asm("prmt.b32 %0, %1, %2, %3;\n" : "=r"(out) : "r"(x), "r"(y), "r"(picks));
  return out;
}

// The tensor cores' product of sm_80 and later: D [16][8] += A [16][16] B [16][8], fp16 in, fp32
// out. Lane l holds of D the rows l / 4 and l / 4 + 8, columns 2 (l % 4) and the next one.

struct FragmentA {
  uint32_t x[4];
};
struct FragmentB {
  uint32_t x[2];
};
struct FragmentD {
  float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
};

__device__ inline void MultiplyAdd(const FragmentA& a, const FragmentB& b, FragmentD& d) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d.x[0]), "+f"(d.x[1]), "+f"(d.x[2]), "+f"(d.x[3])
      : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]));
}

// The same of bf16 numbers.
__device__ inline void MultiplyAddBFloat(const FragmentA& a, const FragmentB& b, FragmentD& d) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
      "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};\n"
      : "+f"(d.x[0]), "+f"(d.x[1]), "+f"(d.x[2]), "+f"(d.x[3])
      : "r"(a.x[0]), "r"(a.x[1]), "r"(a.x[2]), "r"(a.x[3]), "r"(b.x[0]), "r"(b.x[1]));
}

// A from shared memory, [16][16] at `tile`, rows `stride` values apart (a multiple of 8).
__device__ inline FragmentA LoadA(const __half* tile, int stride) {
  const int lane = threadIdx.x % 32;
  const uint32_t at = SharedAddress(tile + lane % 16 * stride + lane / 16 * 8);
  FragmentA a;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(a.x[0]), "=r"(a.x[1]), "=r"(a.x[2]), "=r"(a.x[3])
               : "r"(at));
  return a;
}

// A from four 8 x 8 matrices in shared memory, each transposed: a lane names a row of 16 bytes,
// lanes 8 i to 8 i + 7 those of matrix i.
__device__ inline FragmentA LoadTransposed(const void* row) {
  FragmentA a;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
               : "=r"(a.x[0]), "=r"(a.x[1]), "=r"(a.x[2]), "=r"(a.x[3])
               : "r"(SharedAddress(row))
               : "memory");
  return a;
}

// B of columns that lie in rows: [8 columns][16] at `tile`.
__device__ inline FragmentB LoadColumns(const __half* tile, int stride) {
  const int lane = threadIdx.x % 32;
  const auto* at = reinterpret_cast<const uint32_t*>(tile + lane / 4 * stride + lane % 4 * 2);
  return {{at[0], at[4]}};
}

// B of rows: [16][8 columns] at `tile`.
__device__ inline FragmentB LoadRows(const __half* tile, int stride) {
  const int lane = threadIdx.x % 32;
  const uint32_t at = SharedAddress(tile + lane % 16 * stride);
  FragmentB b;
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];\n"
               : "=r"(b.x[0]), "=r"(b.x[1])
               : "r"(at));
  return b;
}

}  // namespace latentd
