#pragma once

// Included before a CUDA source: what nvcc knows by itself.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime_api.h>
#include <vector_functions.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <type_traits>

#include "tests/emulation/block.h"

#undef __shared__
#define __shared__ static
#undef __global__
#define __global__ static
#undef __launch_bounds__
#define __launch_bounds__(...)

#define threadIdx ::latentd::emulation::thread_index
#define blockIdx ::latentd::emulation::block_index
#define blockDim ::latentd::emulation::block_size
#define gridDim ::latentd::emulation::grid_size

template <typename A, typename B>
constexpr std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(b) < static_cast<T>(a) ? static_cast<T>(b) : static_cast<T>(a);
}
template <typename A, typename B>
constexpr std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  return static_cast<T>(a) < static_cast<T>(b) ? static_cast<T>(b) : static_cast<T>(a);
}

inline float rsqrtf(float x) { return 1.0f / std::sqrt(x); }
inline int __float_as_int(float x) { return std::bit_cast<int>(x); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __int_as_float(int x) { return std::bit_cast<float>(x); }
inline float __uint_as_float(unsigned x) { return std::bit_cast<float>(x); }
inline float __fadd_rn(float a, float b) { return a + b; }
inline float __fsub_rn(float a, float b) { return a - b; }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fdiv_rn(float a, float b) { return a / b; }
inline float __fsqrt_rn(float a) { return std::sqrt(a); }
inline unsigned long long __float2ull_rn(float x) {
  return x <= 0.0f ? 0 : static_cast<unsigned long long>(std::nearbyint(static_cast<double>(x)));
}
inline uint64_t __umul64hi(uint64_t a, uint64_t b) {
  return static_cast<uint64_t>(static_cast<unsigned __int128>(a) * b >> 64);
}
inline int __clz(int x) { return std::countl_zero(static_cast<unsigned>(x)); }
inline unsigned __byte_perm(unsigned x, unsigned y, unsigned selector) {
  const uint64_t bytes = static_cast<uint64_t>(y) << 32 | x;
  unsigned out = 0;
  for (int i = 0; i < 4; ++i) {
    const unsigned pick = selector >> 4 * i & 7;
    out |= (static_cast<unsigned>(bytes >> 8 * pick) & 255) << 8 * i;
  }
  return out;
}
template <typename T>
T __ldg(const T* at) {
  return *at;
}
template <typename T>
T __ldcg(const T* at) {
  return *at;
}
template <typename T>
T __ldcs(const T* at) {
  return *at;
}
template <typename T>
T atomicAdd(T* at, std::type_identity_t<T> value) {
  const T old = *at;
  *at += value;
  return old;
}
template <typename T>
T atomicMax(T* at, std::type_identity_t<T> value) {
  const T old = *at;
  *at = std::max(old, value);
  return old;
}
template <typename T>
T atomicOr(T* at, std::type_identity_t<T> value) {
  const T old = *at;
  *at |= value;
  return old;
}
[[noreturn]] inline void __trap() { std::abort(); }

inline void __syncthreads() {
  using namespace latentd::emulation;
  Meet(NamedMeeting(0), static_cast<int>(block_size.x), static_cast<int>(thread_index.x), nullptr,
       [](void**) {});
}
inline int __syncthreads_or(int value) {
  using namespace latentd::emulation;
  const int count = static_cast<int>(block_size.x);
  Meet(NamedMeeting(0), count, static_cast<int>(thread_index.x), &value, [count](void** all) {
    int any = 0;
    for (int i = 0; i < count; ++i) any |= *static_cast<int*>(all[i]);
    for (int i = 0; i < count; ++i) *static_cast<int*>(all[i]) = any;
  });
  return value;
}
inline void __syncwarp(unsigned = ~0u) {
  latentd::emulation::OfWarp(0, [](int*) {});
}
template <typename T>
T __shfl_sync(unsigned, T value, int lane) {
  struct Ask {
    T value;
    int lane;
  };
  return latentd::emulation::OfWarp(Ask{value, lane},
                                    [](Ask* lanes) {
                                      T values[32];
                                      for (int i = 0; i < 32; ++i) values[i] = lanes[i].value;
                                      for (int i = 0; i < 32; ++i)
                                        lanes[i].value = values[lanes[i].lane & 31];
                                    })
      .value;
}
template <typename T>
T __shfl_xor_sync(unsigned all, T value, int mask) {
  return __shfl_sync(all, value, latentd::emulation::Lane() ^ mask);
}
template <typename T>
T __shfl_up_sync(unsigned all, T value, int distance) {
  const int lane = latentd::emulation::Lane();
  return __shfl_sync(all, value, lane < distance ? lane : lane - distance);
}
inline int __any_sync(unsigned, int value) {
  return latentd::emulation::OfWarp(value, [](int* lanes) {
    int any = 0;
    for (int i = 0; i < 32; ++i) any |= lanes[i] != 0 ? 1 : 0;
    for (int i = 0; i < 32; ++i) lanes[i] = any;
  });
}
inline int __reduce_add_sync(unsigned, int value) {
  return latentd::emulation::OfWarp(value, [](int* lanes) {
    const int sum = std::accumulate(lanes, lanes + 32, 0);
    std::fill(lanes, lanes + 32, sum);
  });
}
inline int __reduce_max_sync(unsigned, int value) {
  return latentd::emulation::OfWarp(value, [](int* lanes) {
    const int most = *std::max_element(lanes, lanes + 32);
    std::fill(lanes, lanes + 32, most);
  });
}

inline __half2 __hfma2(__half2 a, __half2 b, __half2 c) {
  const auto one = [](__half x, __half y, __half z) {
    return __double2half(double{__half2float(x)} * __half2float(y) + __half2float(z));
  };
  return {one(a.x, b.x, c.x), one(a.y, b.y, c.y)};
}
inline __nv_bfloat162 __hfma2(__nv_bfloat162 a, __nv_bfloat162 b, __nv_bfloat162 c) {
  const auto one = [](__nv_bfloat16 x, __nv_bfloat16 y, __nv_bfloat16 z) {
    return __double2bfloat16(double{__bfloat162float(x)} * __bfloat162float(y) +
                             __bfloat162float(z));
  };
  return {one(a.x, b.x, c.x), one(a.y, b.y, c.y)};
}
