#pragma once

#include <cstdint>

namespace latentd {

// What a block of threads finds out about one row of numbers, x[vocab]. Sums are of integers, so
// that their order changes no bit: a weight counts in units of 2^-43 of the largest one.

inline constexpr int kSampleThreads = 1024;
inline constexpr int kSampleWarps = kSampleThreads / 32;
inline constexpr int kBinBits = 12;
inline constexpr int kBins = 1 << kBinBits;
inline constexpr int kMaxVocab = 1 << 20;  // a sum of weights has 63 bits
inline constexpr float kWeightOne = 0x1p43f;

struct SampleMemory {
  uint32_t low[kBins], high[kBins];  // of the bins' amounts
  uint64_t warps[kSampleWarps];
  uint64_t before, amount;  // of the bin that was found: of all bins before it, its own
  int found;                // bin or id
};

// Where a number stands: the larger number before the smaller one, the smaller id before the larger
// one among equals. What stands first has the largest order.
__device__ inline uint32_t KeyOf(float x) {
  const uint32_t bits = __float_as_uint(x == 0.0f ? 0.0f : x);  // -0 equals 0
  return (bits >> 31) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ inline uint64_t OrderOf(float x, int id) {
  return uint64_t{KeyOf(x)} << 32 | ~static_cast<uint32_t>(id);
}
__device__ inline uint32_t KeyIn(uint64_t order) { return static_cast<uint32_t>(order >> 32); }
__device__ inline int IdIn(uint64_t order) {
  return static_cast<int>(~static_cast<uint32_t>(order));
}
__device__ inline float NumberOf(uint32_t key) {
  return __uint_as_float((key >> 31) != 0 ? key & 0x7fffffffu : ~key);
}

// A number's weight e^((x - largest) / temperature), between 0 and 1, and in units.
struct SoftmaxWeight {
  float largest;
  float factor;  // log2(e) / temperature
  __device__ float operator()(float x) const { return exp2f((x - largest) * factor); }
};
__device__ inline uint64_t UnitsOf(float weight) { return __float2ull_rn(weight * kWeightOne); }

// f(i, x[i]) for i = begin, begin + stride, ... below `end`; f may write x[i].
template <typename F>
__device__ inline void ForEach(const float* x, int begin, int end, int stride, const F& f) {
  constexpr int kAtOnce = 8;
  int i = begin;
  for (; i + (kAtOnce - 1) * stride < end; i += kAtOnce * stride) {
    float values[kAtOnce];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) values[n] = x[i + n * stride];
#pragma unroll
    for (int n = 0; n < kAtOnce; ++n) f(i + n * stride, values[n]);
  }
  for (; i < end; i += stride) f(i, x[i]);
}

template <typename F>
__device__ inline void ForEach(const float* x, int vocab, const F& f) {
  ForEach(x, static_cast<int>(threadIdx.x), vocab, kSampleThreads, f);
}

struct RunningSum {
  uint64_t sum;  // over the threads up to this one
  uint64_t all;  // over all
};

__device__ inline RunningSum RunningSumOf(uint64_t value, SampleMemory& memory) {
  const int warp = static_cast<int>(threadIdx.x) / 32, lane = static_cast<int>(threadIdx.x) % 32;
  for (int distance = 1; distance < 32; distance *= 2) {
    const uint64_t other = __shfl_up_sync(0xffffffffu, value, distance);
    if (lane >= distance) value += other;
  }
  __syncthreads();  // what memory.warps held has been read
  if (lane == 31) memory.warps[warp] = value;
  __syncthreads();
  RunningSum result{.sum = value, .all = 0};
  for (int w = 0; w < kSampleWarps; ++w) {
    if (w < warp) result.sum += memory.warps[w];
    result.all += memory.warps[w];
  }
  return result;
}

struct Largest {
  uint64_t order;  // of the number that stands first
  bool ok;         // it is finite, and there is no NaN
};

__device__ inline Largest FindLargest(const float* x, int vocab, SampleMemory& memory) {
  float largest = -INFINITY;
  int id = 0;
  bool bad = false;
  ForEach(x, vocab, [&](int i, float value) {
    bad |= !(value < INFINITY);
    if (value > largest) {
      largest = value;
      id = i;
    }
  });
  uint64_t order = OrderOf(largest, id);
  for (int lane = 16; lane > 0; lane /= 2) {
    order = max(order, __shfl_xor_sync(0xffffffffu, order, lane));
  }
  bad = __syncthreads_or(bad) != 0;  // and what memory.warps held has been read
  if (threadIdx.x % 32 == 0) memory.warps[threadIdx.x / 32] = order;
  __syncthreads();
  for (int w = 0; w < kSampleWarps; ++w) order = max(order, memory.warps[w]);
  return {order, !bad && NumberOf(KeyIn(order)) > -INFINITY};
}

// 32 bits at a time, as atomic operations on shared memory add them.
__device__ inline void AddToBin(SampleMemory& memory, uint32_t bin, uint64_t amount) {
  const auto low = static_cast<uint32_t>(amount);
  const uint32_t carry = atomicAdd(&memory.low[bin], low) > ~low ? 1 : 0;
  const uint32_t high = static_cast<uint32_t>(amount >> 32) + carry;
  if (high != 0) atomicAdd(&memory.high[bin], high);
}

// Finds the bin at which the amounts, after `before` of them, reach `wanted(of all bins)`, which is
// between 1 and all.
template <typename Wanted>
__device__ inline void FindBin(uint64_t before, const Wanted& wanted, SampleMemory& memory) {
  constexpr int kBinsPerThread = kBins / kSampleThreads;
  const int first = static_cast<int>(threadIdx.x) * kBinsPerThread;
  uint64_t amounts[kBinsPerThread], mine = 0;
#pragma unroll
  for (int j = 0; j < kBinsPerThread; ++j) {
    amounts[j] = uint64_t{memory.high[first + j]} << 32 | memory.low[first + j];
    mine += amounts[j];
  }
  const RunningSum running = RunningSumOf(mine, memory);
  const uint64_t target = wanted(running.all);
  before += running.sum - mine;
#pragma unroll
  for (int j = 0; j < kBinsPerThread; ++j) {
    if (before < target && target <= before + amounts[j]) {
      memory.found = first + j;
      memory.before = before;
      memory.amount = amounts[j];
    }
    before += amounts[j];
  }
  __syncthreads();
}

// The first id, in order of ids, at which the running sum of amount(order, number) exceeds
// target(sum of all), which is less than the sum.
template <typename Amount, typename Target>
__device__ inline int FirstIdBeyond(const float* x, int vocab, const Amount& amount,
                                    const Target& target, SampleMemory& memory) {
  const int thread = static_cast<int>(threadIdx.x);
  const int per_warp = (vocab + kSampleWarps - 1) / kSampleWarps;
  const int warp = thread / 32;
  uint64_t sum = 0;
  ForEach(x, warp * per_warp + thread % 32, min(vocab, (warp + 1) * per_warp), 32,
          [&](int i, float value) { sum += amount(OrderOf(value, i), value); });
  for (int lane = 16; lane > 0; lane /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, lane);
  __syncthreads();  // what memory.warps held has been read
  if (thread % 32 == 0) memory.warps[warp] = sum;
  __syncthreads();
  uint64_t all = 0, before = 0;
  for (int w = 0; w < kSampleWarps; ++w) all += memory.warps[w];
  const uint64_t beyond = target(all);
  int found = 0;  // the warp's part in which the id is
  while (before + memory.warps[found] <= beyond) before += memory.warps[found++];

  const int begin = found * per_warp, end = min(vocab, begin + per_warp);
  const int per_thread = (end - begin + kSampleThreads - 1) / kSampleThreads;
  const int first = begin + thread * per_thread, last = min(end, first + per_thread);
  uint64_t mine = 0;
  for (int i = first; i < last; ++i) mine += amount(OrderOf(x[i], i), x[i]);
  before += RunningSumOf(mine, memory).sum - mine;
  if (before <= beyond && beyond < before + mine) {
    int id = first;
    while ((before += amount(OrderOf(x[id], id), x[id])) <= beyond) ++id;
    memory.found = id;
  }
  __syncthreads();
  return memory.found;
}

// The order of the number at which the sum of amount(order, number), from the first in the order
// on, reaches wanted(sum of all), between 1 and the sum. A number's amount is 0 or a function of
// the number alone; it is 0 for all that stand behind one of its equals whose amount is 0.
template <typename Amount, typename Wanted>
__device__ inline uint64_t FindCut(const float* x, int vocab, uint64_t largest,
                                   const Amount& amount, const Wanted& wanted,
                                   SampleMemory& memory) {
  uint32_t low = 0, high = KeyIn(largest);  // the key is in [low, high]
  uint64_t before = 0, target = 0;
  for (bool first = true;; first = false) {
    for (int bin = static_cast<int>(threadIdx.x); bin < kBins; bin += kSampleThreads) {
      memory.low[bin] = memory.high[bin] = 0;
    }
    __syncthreads();
    const int shift = max(0, 32 - __clz(static_cast<int>(high - low)) - kBinBits);
    ForEach(x, vocab, [&](int i, float value) {
      const uint32_t key = KeyOf(value);
      if (key < low || key > high) return;
      const uint64_t units = amount(OrderOf(value, i), value);
      if (units != 0) AddToBin(memory, (high - key) >> shift, units);
    });
    __syncthreads();
    FindBin(
        before,
        [&](uint64_t all) {
          if (first) target = wanted(all);
          return target;
        },
        memory);
    before = memory.before;
    high -= static_cast<uint32_t>(memory.found) << shift;
    const uint32_t others = (uint32_t{1} << shift) - 1;
    low = high - low > others ? high - others : low;
    if (shift == 0) break;
  }
  // All that are left are equal.
  const uint64_t all = memory.amount;
  const uint64_t each = amount(OrderOf(NumberOf(high), 0), NumberOf(high));
  const uint64_t needed = (target - before + each - 1) / each;
  if (needed * each >= all) return uint64_t{high} << 32;
  const auto counts = [&](uint64_t order, float value) {
    return KeyIn(order) == high && amount(order, value) != 0 ? uint64_t{1} : uint64_t{0};
  };
  const int id = FirstIdBeyond(
      x, vocab, counts, [&](uint64_t) { return needed - 1; }, memory);
  return uint64_t{high} << 32 | ~static_cast<uint32_t>(id);
}

}  // namespace latentd
