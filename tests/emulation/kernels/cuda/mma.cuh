#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <bit>
#include <cstdint>
#include <cstring>

#include "kernels/cuda/async_copy.cuh"
#include "tests/emulation/block.h"

namespace latentd {

inline uint32_t AndOr(uint32_t x, uint32_t mask, uint32_t bits) { return (x & mask) | bits; }
inline uint32_t AndXor(uint32_t x, uint32_t mask, uint32_t bits) { return (x & mask) ^ bits; }
inline uint32_t PickBytes(uint32_t x, uint32_t y, uint32_t picks) {
  uint32_t out = __byte_perm(x, y, picks);
  for (int i = 0; i < 4; ++i) {
    if ((picks >> 4 * i & 8) == 0) continue;
    const uint32_t byte = 255u << 8 * i;
    out = (out >> 8 * i & 128) != 0 ? out | byte : out & ~byte;
  }
  return out;
}

struct FragmentA {
  uint32_t x[4];
};
struct FragmentB {
  uint32_t x[2];
};
struct FragmentD {
  float x[4] = {0.0f, 0.0f, 0.0f, 0.0f};
};

namespace emulation {

template <typename Number>
float NumberAt(uint32_t two, int i) {
  return static_cast<float>(std::bit_cast<Number>(static_cast<uint16_t>(two >> 16 * i)));
}

struct Product16 {
  FragmentA a;
  FragmentB b;
  FragmentD d;
};

template <typename Number>
void Multiply16(const FragmentA& a, const FragmentB& b, FragmentD& d) {
  d = OfWarp(Product16{a, b, d}, [](Product16* lanes) {
        float left[16][16], right[16][8];
        for (int l = 0; l < 32; ++l) {
          const int row = l / 4, k = l % 4 * 2;
          for (int i = 0; i < 2; ++i) {
            left[row][k + i] = NumberAt<Number>(lanes[l].a.x[0], i);
            left[row + 8][k + i] = NumberAt<Number>(lanes[l].a.x[1], i);
            left[row][k + 8 + i] = NumberAt<Number>(lanes[l].a.x[2], i);
            left[row + 8][k + 8 + i] = NumberAt<Number>(lanes[l].a.x[3], i);
            right[k + i][row] = NumberAt<Number>(lanes[l].b.x[0], i);
            right[k + 8 + i][row] = NumberAt<Number>(lanes[l].b.x[1], i);
          }
        }
        for (int l = 0; l < 32; ++l) {
          for (int e = 0; e < 4; ++e) {
            const int row = l / 4 + e / 2 * 8, column = l % 4 * 2 + e % 2;
            float sum = lanes[l].d.x[e];
            for (int k = 0; k < 16; ++k) sum += left[row][k] * right[k][column];
            lanes[l].d.x[e] = sum;
          }
        }
      }).d;
}

struct Matrices {
  const void* row;
  FragmentA a;
};
// ldmatrix of `count` matrices of 8 x 8.
inline FragmentA LoadMatrices(const void* row, int count, bool transposed) {
  return OfWarp(Matrices{row, {}},
                [=](Matrices* lanes) {
                  for (int l = 0; l < 32; ++l) {
                    for (int m = 0; m < count; ++m) {
                      uint32_t two = 0;
                      for (int i = 0; i < 2; ++i) {
                        const int r = transposed ? l % 4 * 2 + i : l / 4;
                        const int c = transposed ? l / 4 : l % 4 * 2 + i;
                        uint16_t bits;
                        std::memcpy(&bits, static_cast<const uint16_t*>(lanes[8 * m + r].row) + c,
                                    2);
                        two |= uint32_t{bits} << 16 * i;
                      }
                      lanes[l].a.x[m] = two;
                    }
                  }
                })
      .a;
}

}  // namespace emulation

inline void MultiplyAdd(const FragmentA& a, const FragmentB& b, FragmentD& d) {
  emulation::Multiply16<__half>(a, b, d);
}
inline void MultiplyAddBFloat(const FragmentA& a, const FragmentB& b, FragmentD& d) {
  emulation::Multiply16<__nv_bfloat16>(a, b, d);
}

inline FragmentA LoadA(const __half* tile, int stride) {
  const int lane = emulation::Lane();
  return emulation::LoadMatrices(tile + lane % 16 * stride + lane / 16 * 8, 4, false);
}
inline FragmentA LoadTransposed(const void* row) { return emulation::LoadMatrices(row, 4, true); }
inline FragmentB LoadColumns(const __half* tile, int stride) {
  const int lane = emulation::Lane();
  const auto* at = reinterpret_cast<const uint32_t*>(tile + lane / 4 * stride + lane % 4 * 2);
  return {{at[0], at[4]}};
}
inline FragmentB LoadRows(const __half* tile, int stride) {
  const FragmentA a = emulation::LoadMatrices(tile + emulation::Lane() % 16 * stride, 2, true);
  return {{a.x[0], a.x[1]}};
}

}  // namespace latentd
