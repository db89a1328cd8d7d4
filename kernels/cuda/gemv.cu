#include "kernels/cuda/gemv.h"

#include <cuda_bf16.h>

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matmul.h"

namespace latentd {
namespace {

constexpr int kMostProducts = 4;  // of a launch
constexpr int kWarps = 4;         // of a block
constexpr int kStep = 8 * 32;     // columns that a warp reads at once: 16 bytes of weights a lane
constexpr int kStepBytes = 2 * kStep;
constexpr int kPlaces = 6;  // of steps, in shared memory

__host__ __device__ constexpr int RingBytes(int outputs) {  // of a warp
  return kPlaces * outputs * kStepBytes;
}

struct GemvProduct {
  const uint16_t* weight = nullptr;  // [n, k]
  const float* bias = nullptr;
  float* out = nullptr;
  int64_t out_stride = 0;
  int n = 0;
  int first_warp = 0;
  bool accumulate = false;
};
struct GemvArguments {
  const float* in = nullptr;  // [rows, k]
  int rows = 0;
  int k = 0;
  int warps = 0;  // of all products
  int count = 0;
  GemvProduct products[kMostProducts];
};

// The two bf16 numbers of a word.
__device__ inline float2 Floats(uint32_t two) {
  return {__uint_as_float(two << 16), __uint_as_float(two & 0xFFFF0000u)};
}
__device__ inline float2 Rounded(float x, float y) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(x, y);
  return Floats(*reinterpret_cast<const uint32_t*>(&two));
}

// Bound by the memory: 2 n k bytes of weights, each read once.
//
// A warp makes kOutputs neighbouring columns of all rows; columns and rows that are not there do as
// the last. Each lane's weights pass through places of its own in shared memory, so that many are
// under way: left to registers, the compiler has few loads at once.
template <int kRows, int kOutputs>
__global__ void __launch_bounds__(32 * kWarps) Gemv(const __grid_constant__ GemvArguments p) {
  const int warp = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  if (warp >= p.warps) return;
  int of = 0;
  while (of + 1 < p.count && warp >= p.products[of + 1].first_warp) ++of;
  const GemvProduct& product = p.products[of];
  const int first = (warp - product.first_warp) * kOutputs;
  const uint8_t* weights[kOutputs];
#pragma unroll
  for (int o = 0; o < kOutputs; ++o) {
    const int64_t row = min(first + o, product.n - 1);
    weights[o] = reinterpret_cast<const uint8_t*>(product.weight + row * p.k + 8 * lane);
  }
  const uint8_t* ring = SharedMemory() + threadIdx.x / 32 * RingBytes(kOutputs) + 16 * lane;
  const auto fetch = [&](int s, int place) {
    if (s * kStep + 8 * lane < p.k) {
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
        BeginCopy(SharedAddress(ring + (place * kOutputs + o) * kStepBytes),
                  weights[o] + int64_t{s} * kStepBytes);
      }
    }
    EndCopies();
  };

  float sums[kRows][kOutputs] = {};
  for (int s = 0; s < kPlaces - 1; ++s) fetch(s, s);
  int place = 0, next = kPlaces - 1;
  for (int s = 0, column = 8 * lane; column < p.k; ++s, column += kStep) {
    WaitForCopies<kPlaces - 2>();
    fetch(s + kPlaces - 1, next);
    float2 w[kOutputs][4];
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      const uint4 words =
          *reinterpret_cast<const uint4*>(ring + (place * kOutputs + o) * kStepBytes);
      w[o][0] = Floats(words.x), w[o][1] = Floats(words.y);
      w[o][2] = Floats(words.z), w[o][3] = Floats(words.w);
    }
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
      const auto* in =
          reinterpret_cast<const float4*>(p.in + int64_t{min(t, p.rows - 1)} * p.k + column);
      const float4 low = __ldg(in), high = __ldg(in + 1);
      const float2 x[4] = {Rounded(low.x, low.y), Rounded(low.z, low.w), Rounded(high.x, high.y),
                           Rounded(high.z, high.w)};
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[t][o] = fmaf(w[o][i].x, x[i].x, sums[t][o]);
          sums[t][o] = fmaf(w[o][i].y, x[i].y, sums[t][o]);
        }
      }
    }
    next = place;
    if (++place == kPlaces) place = 0;
  }
  float mine = 0.0f;  // a lane's result
#pragma unroll
  for (int t = 0; t < kRows; ++t) {
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      float sum = sums[t][o];
      for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
      if (lane == t * kOutputs + o) mine = sum;
    }
  }
  const int t = lane / kOutputs, n = first + lane % kOutputs;
  if (t >= min(kRows, p.rows) || n >= product.n) return;
  float* out = product.out + t * product.out_stride + n;
  if (product.bias != nullptr) mine += product.bias[n];
  *out = product.accumulate ? *out + mine : mine;
}

struct Choice {
  void (*kernel)(GemvArguments);
  int rows, outputs;
};
constexpr Choice kChoices[] = {
    {Gemv<1, 2>, 1, 2}, {Gemv<2, 2>, 2, 2}, {Gemv<kMostGemvRows, 4>, kMostGemvRows, 4}};

}  // namespace

void CudaGemv(CudaDevice& device, const MatmulParams& p) {
  LATENTD_CHECK(p.rows > 0 && p.rows <= kMostGemvRows);
  const Choice* choice =
      std::ranges::find_if(kChoices, [&](const Choice& c) { return c.rows >= p.rows; });
  for (size_t begin = 0; begin < p.products.size(); begin += kMostProducts) {
    GemvArguments arguments{
        .in = p.in, .rows = static_cast<int>(p.rows), .k = static_cast<int>(p.k)};
    for (const Product& product : p.products.subspan(begin, kMostProducts)) {
      const auto& weight = static_cast<const CudaWeight&>(*product.weight);
      LATENTD_CHECK(weight.cols() == p.k && product.out_stride >= weight.rows());
      const int n = static_cast<int>(weight.rows());
      arguments.products[arguments.count++] = {.weight = weight.values(),
                                               .bias = product.bias,
                                               .out = product.out,
                                               .out_stride = product.out_stride,
                                               .n = n,
                                               .first_warp = arguments.warps,
                                               .accumulate = product.accumulate};
      arguments.warps += (n + choice->outputs - 1) / choice->outputs;
    }
    const auto blocks = static_cast<unsigned>((arguments.warps + kWarps - 1) / kWarps);
    Launch(device, "product of few rows", choice->kernel,
           {blocks, 32 * kWarps, kWarps * RingBytes(choice->outputs)}, arguments);
  }
}

}  // namespace latentd
