#include "kernels/cuda/gemv.h"

#include <cuda_bf16.h>

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "kernels/cuda/activation.cuh"
#include "kernels/cuda/async_copy.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/matmul.h"
#include "kernels/cuda/rows.cuh"

namespace latentd {
namespace {

constexpr int kMostProducts = 4;  // of a launch
constexpr int kMostWarps = 16;    // of a block; half of them where that is too much memory
constexpr int kOutputs = 2;       // that a warp makes at once
constexpr int kStep = 8 * 32;     // columns that a warp reads at once: 16 bytes of weights a lane
constexpr int kStepBytes = 2 * kStep;
constexpr int kPlaces = 6;                                   // of steps, in shared memory
constexpr int kRingBytes = kPlaces * kOutputs * kStepBytes;  // of a warp
constexpr int kDeclaredBytes = 1024;  // of shared memory, by the kernel itself: as it is aligned

struct GemvProduct {
  const uint16_t* weight = nullptr;  // [n, k]
  const float* bias = nullptr;
  float* out = nullptr;
  int64_t out_stride = 0;
  int n = 0;
  int first_item = 0;
  bool accumulate = false;
};
// An item is what a warp makes at once: kOutputs neighbouring columns of a product, or, if it is
// gated, one column of gate and up each, products 0 and 1.
struct GemvArguments {
  NormParams norm;            // without weight: none
  const float* in = nullptr;  // [rows, k], before the norm
  int rows = 0;
  int k = 0;
  int items = 0;
  int count = 0;
  bool activated = false, gated = false;
  ActivationKind activation = ActivationKind::kSiluGated;
  GemvProduct products[kMostProducts];
};

// The column o of an item.
struct GemvColumn {
  const GemvProduct* product;
  int n;
};
__device__ inline GemvColumn ColumnOf(const GemvArguments& p, int item, int o) {
  if (p.gated) return {&p.products[o], item};
  int of = 0;
  while (of + 1 < p.count && item >= p.products[of + 1].first_item) ++of;
  return {&p.products[of], (item - p.products[of].first_item) * kOutputs + o};
}

// The two bf16 numbers of a word.
__device__ inline float2 Floats(uint32_t two) {
  return {__uint_as_float(two << 16), __uint_as_float(two & 0xFFFF0000u)};
}
__device__ inline uint32_t Rounded(float x, float y) {
  const __nv_bfloat162 two = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<const uint32_t*>(&two);
}

// Brings a row to shared memory, normed and as bf16: four values a thread at once.
__device__ inline void BringRow(const GemvArguments& p, const float* row, uint2* to) {
  const auto* in = reinterpret_cast<const float4*>(row);
  const int fours = p.k / 4, threads = static_cast<int>(blockDim.x);
  if (p.norm.weight == nullptr) {
#pragma unroll 4
    for (int i = threadIdx.x; i < fours; i += threads) {
      const float4 x = __ldcg(in + i);
      to[i] = {Rounded(x.x, x.y), Rounded(x.z, x.w)};
    }
    return;
  }
  float mean = 0.0f;
  if (p.norm.kind == NormKind::kLayer) {
    float sum = 0.0f;
    for (int i = threadIdx.x; i < fours; i += threads) {
      const float4 x = __ldcg(in + i);
      sum += (x.x + x.y) + (x.z + x.w);
    }
    mean = BlockSum(sum) / static_cast<float>(p.k);
  }
  float squares = 0.0f;
#pragma unroll 4
  for (int i = threadIdx.x; i < fours; i += threads) {
    const float4 x = __ldcg(in + i);
    const float a = x.x - mean, b = x.y - mean, c = x.z - mean, d = x.w - mean;
    squares += (a * a + b * b) + (c * c + d * d);
  }
  const float inverse = rsqrtf(BlockSum(squares) / static_cast<float>(p.k) + p.norm.epsilon);
  const auto* weight = reinterpret_cast<const float4*>(p.norm.weight);
  const auto* bias = reinterpret_cast<const float4*>(p.norm.bias);
#pragma unroll 4
  for (int i = threadIdx.x; i < fours; i += threads) {
    const float4 x = __ldcg(in + i), w = __ldg(weight + i);
    const float4 b = bias == nullptr ? float4{} : __ldg(bias + i);
    to[i] = {Rounded((x.x - mean) * inverse * w.x + b.x, (x.y - mean) * inverse * w.y + b.y),
             Rounded((x.z - mean) * inverse * w.z + b.z, (x.w - mean) * inverse * w.w + b.w)};
  }
}

// Bound by the memory: 2 n k bytes of weights, each read once.
//
// A block stays on its multiprocessor. Each warp walks over items of its own; their weights pass
// through the warp's places in shared memory, each lane's through its own 16 bytes of them, so that
// as much is under way all the time: the next item's while this one's sums are folded, and before
// the input is there. Columns and rows that are not there do as the last.
template <int kRows>
__global__ void __launch_bounds__(32 * kMostWarps, 1)
    Gemv(const __grid_constant__ GemvArguments p) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  const int warps = static_cast<int>(blockDim.x) / 32, blocks = static_cast<int>(gridDim.x);
  const int first = warp * blocks + static_cast<int>(blockIdx.x), stride = warps * blocks;
  const uint8_t* ring = SharedMemory() + warp * kRingBytes + 16 * lane;
  uint8_t* input = SharedMemory() + warps * kRingBytes;  // bf16 [rows, k]

  const uint8_t* coming[kOutputs];  // the lane's weights that are fetched next
  int coming_item = first, coming_column = 0;
  const auto begin_item = [&] {
    coming_column = 0;
#pragma unroll
    for (int o = 0; o < kOutputs; ++o) {
      const auto [product, n] = ColumnOf(p, min(coming_item, p.items - 1), o);
      const int64_t row = min(n, product->n - 1);
      coming[o] = reinterpret_cast<const uint8_t*>(product->weight + row * p.k + 8 * lane);
    }
  };
  const auto fetch = [&](int place) {
    if (coming_item < p.items) {
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
        if (coming_column + 8 * lane < p.k) {
          BeginCopyOnce(SharedAddress(ring + (place * kOutputs + o) * kStepBytes), coming[o]);
        }
        coming[o] += kStepBytes;
      }
      coming_column += kStep;
      if (coming_column >= p.k) {
        coming_item += stride;
        begin_item();
      }
    }
    EndCopies();
  };

  begin_item();
  for (int place = 0; place < kPlaces - 1; ++place) fetch(place);
  LetNextKernelBegin();
  WaitForKernelsBefore();
  for (int t = 0; t < min(kRows, p.rows); ++t) {
    BringRow(p, p.in + int64_t{t} * p.k, reinterpret_cast<uint2*>(input + int64_t{2} * t * p.k));
  }
  __syncthreads();

  int place = 0, next = kPlaces - 1;
  for (int item = first; item < p.items; item += stride) {
    float sums[kRows][kOutputs] = {};
    for (int step = 0; step < p.k; step += kStep) {
      WaitForCopies<kPlaces - 2>();
      fetch(next);
      const int column = step + 8 * lane;
      if (column < p.k) {
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
          const uint4 words =
              *reinterpret_cast<const uint4*>(input + 2 * (min(t, p.rows - 1) * p.k + column));
          const float2 x[4] = {Floats(words.x), Floats(words.y), Floats(words.z), Floats(words.w)};
#pragma unroll
          for (int o = 0; o < kOutputs; ++o) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              sums[t][o] = fmaf(w[o][i].x, x[i].x, sums[t][o]);
              sums[t][o] = fmaf(w[o][i].y, x[i].y, sums[t][o]);
            }
          }
        }
      }
      next = place;
      if (++place == kPlaces) place = 0;
    }
    float mine = 0.0f;  // lane t * kOutputs + o: of row t and column o
#pragma unroll
    for (int t = 0; t < kRows; ++t) {
#pragma unroll
      for (int o = 0; o < kOutputs; ++o) {
        const float sum = WarpSum(sums[t][o]);
        if (lane == t * kOutputs + o) mine = sum;
      }
    }
    const int t = lane / kOutputs, o = lane % kOutputs;
    const auto [product, n] = ColumnOf(p, item, o);
    if (product->bias != nullptr && n < product->n) mine += product->bias[n];
    if (p.activated) {
      const float up = __shfl_xor_sync(0xffffffffu, mine, 1);
      mine = Activated(p.activation, mine, up);
    }
    if (t < min(kRows, p.rows) && n < product->n && !(p.gated && o > 0)) {
      float* out = product->out + t * product->out_stride + n;
      *out = product->accumulate ? __ldcg(out) + mine : mine;
    }
  }
}

struct Choice {
  void (*kernel)(GemvArguments);
  int rows;
};
constexpr Choice kChoices[] = {{Gemv<1>, 1}, {Gemv<2>, 2}, {Gemv<kMostGemvRows>, kMostGemvRows}};

int64_t SharedBytes(int warps, int64_t rows, int64_t k) {
  return warps * kRingBytes + 2 * rows * k;
}

// Of a block, as many as find room with the input of so many rows; 0 if there is no room.
int WarpsFor(const CudaDevice& device, int64_t rows, int64_t k) {
  for (const int warps : {kMostWarps, kMostWarps / 2}) {
    if (SharedBytes(warps, rows, k) + kDeclaredBytes <= device.shared_bytes()) return warps;
  }
  return 0;
}

// As the kernel reads rows and norms: four numbers at once.
bool IsAligned(const float* values) {
  return reinterpret_cast<uintptr_t>(values) % (4 * sizeof(float)) == 0;
}

// Puts gate before up, and makes them write the activation's output.
void JoinActivation(const ActivationParams& p, GemvArguments* arguments) {
  arguments->activated = true;
  arguments->activation = p.kind;
  arguments->gated = p.kind == ActivationKind::kSiluGated;
  absl::Span<GemvProduct> products(arguments->products, arguments->count);
  if (arguments->gated) {
    LATENTD_CHECK(products.size() == 2);
    if (products[0].out == p.up) std::swap(products[0], products[1]);
    LATENTD_CHECK(products[1].out == p.up);
    arguments->items = static_cast<int>(p.dims);
  }
  LATENTD_CHECK(products[0].out == p.gate);
  for (GemvProduct& product : products) {
    LATENTD_CHECK(product.n == p.dims && product.out_stride == p.dims && !product.accumulate);
    product.out = p.out;
  }
}

}  // namespace

bool FitsGemv(const CudaDevice& device, int64_t rows, int64_t k) {
  return rows <= kMostGemvRows && WarpsFor(device, rows, k) > 0;
}

void CudaGemv(CudaDevice& device, const MatmulParams& p) {
  const int warps = WarpsFor(device, p.rows, p.k);
  LATENTD_CHECK(p.rows > 0 && p.rows <= kMostGemvRows && warps > 0);
  LATENTD_CHECK(p.norm == nullptr || (p.norm->out == p.in && p.norm->dims == p.k));
  LATENTD_CHECK(p.activation == nullptr || p.products.size() <= kMostProducts);
  if (p.norm != nullptr) {
    LATENTD_CHECK(IsAligned(p.norm->in) && IsAligned(p.norm->weight) && IsAligned(p.norm->bias));
    for (const Product& product : p.products) LATENTD_CHECK(product.out != p.norm->in);
  }
  const Choice* choice =
      std::ranges::find_if(kChoices, [&](const Choice& c) { return c.rows >= p.rows; });
  for (size_t begin = 0; begin < p.products.size(); begin += kMostProducts) {
    GemvArguments arguments{
        .in = p.in, .rows = static_cast<int>(p.rows), .k = static_cast<int>(p.k)};
    if (p.norm != nullptr) {
      arguments.norm = *p.norm;
      arguments.in = p.norm->in;
    }
    for (const Product& product : p.products.subspan(begin, kMostProducts)) {
      const auto& weight = static_cast<const CudaWeight&>(*product.weight);
      LATENTD_CHECK(weight.cols() == p.k && product.out_stride >= weight.rows());
      const int n = static_cast<int>(weight.rows());
      arguments.products[arguments.count++] = {.weight = weight.values(),
                                               .bias = product.bias,
                                               .out = product.out,
                                               .out_stride = product.out_stride,
                                               .n = n,
                                               .first_item = arguments.items,
                                               .accumulate = product.accumulate};
      arguments.items += (n + kOutputs - 1) / kOutputs;
    }
    if (p.activation != nullptr) JoinActivation(*p.activation, &arguments);
    const int blocks = std::min(device.multiprocessors(), arguments.items);
    // One block at a time has room on a multiprocessor: of the next product's, which begin as this
    // one's end, two would find room on the first multiprocessors and none on the last.
    Launch(device, "product of few rows", choice->kernel,
           {.blocks = dim3(static_cast<unsigned>(blocks)),
            .threads = 32 * warps,
            .shared_bytes = std::max(static_cast<int>(SharedBytes(warps, p.rows, p.k)),
                                     device.shared_bytes() / 2 + 1024),
            .early = true},
           arguments);
  }
}

}  // namespace latentd
