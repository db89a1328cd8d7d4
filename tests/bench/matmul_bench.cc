// Products of the shapes of SmolLM2-135M, for a decode step and for prefill. Counters: weight bytes
// and multiply-adds a second. `matmul_bench --benchmark_repetitions=5` and take the best: other
// work on the machine only slows it.

#include <memory>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/packed_weight.h"
#include "tests/testing/random_values.h"
#include "tests/testing/random_weight.h"

namespace latentd {
namespace {

// Products that share an input, as a layer has them.
struct Group {
  int64_t k;
  std::vector<int64_t> n;
};
const Group kQkv{576, {576, 192, 192}}, kOut{576, {576}}, kGateUp{576, {1536, 1536}},
    kDown{1536, {576}}, kHead{576, {49152}};

// Weights of `groups` for `layers` layers, and a step through all of them.
class Stack {
 public:
  Stack(DType dtype, const std::vector<Group>& groups, int layers, int threads)
      : pool_(threads), scratch_(threads) {
    for (int layer = 0; layer < layers; ++layer) {
      for (const Group& group : groups) {
        Call call{.k = group.k};
        for (int64_t n : group.n) {
          const RandomWeight stored(dtype, n, group.k, n);
          call.weights.push_back(*PackedWeight::Create(stored.view(), memory_, pool_));
          bytes_ += call.weights.back()->bytes();
          products_ += n * group.k;
          call.width += n;
        }
        widest_ = std::max(widest_, call.width);
        calls_.push_back(std::move(call));
      }
    }
  }

  int64_t bytes() const { return bytes_; }
  int64_t products() const { return products_; }

  void Step(int64_t rows) {
    in_.resize(rows * 1536, 0.5f);
    out_.resize(rows * widest_);
    for (const Call& call : calls_) {
      std::vector<Product> products;
      float* out = out_.data();
      for (const auto& weight : call.weights) {
        products.push_back({.weight = weight.get(), .out = out, .out_stride = call.width});
        out += weight->rows();
      }
      CpuMatmul(pool_, scratch_,
                {.in = in_.data(), .rows = rows, .k = call.k, .products = products});
    }
  }

 private:
  struct Call {
    int64_t k = 0;
    int64_t width = 0;  // of a row with the outputs of all weights
    std::vector<std::unique_ptr<PackedWeight>> weights;
  };
  ThreadPool pool_;
  Scratch scratch_;
  WeightMemory memory_;
  std::vector<Call> calls_;
  std::vector<float> in_, out_;
  int64_t bytes_ = 0, products_ = 0, widest_ = 0;
};

void Run(benchmark::State& state, Stack& stack) {
  const int64_t rows = state.range(0);
  for (auto _ : state) stack.Step(rows);
  const auto per_second = [&](double amount) {
    return benchmark::Counter(amount * 1e-9 * static_cast<double>(state.iterations()),
                              benchmark::Counter::kIsRate);
  };
  state.counters["GB/s"] = per_second(static_cast<double>(stack.bytes()));
  state.counters["GMAC/s"] = per_second(static_cast<double>(stack.products() * rows));
}

// All layers of the model: what a step spends on them.
void BM_Layers(benchmark::State& state) {
  Stack stack(static_cast<DType>(state.range(1)), {kQkv, kOut, kGateUp, kDown}, 30,
              static_cast<int>(state.range(2)));
  Run(state, stack);
}
void BM_Head(benchmark::State& state) {
  Stack stack(static_cast<DType>(state.range(1)), {kHead}, 1, static_cast<int>(state.range(2)));
  Run(state, stack);
}

void Arguments(benchmark::internal::Benchmark* b) {
  const auto add = [b](int rows, DType dtype, int threads) {
    b->Args({rows, static_cast<int>(dtype), threads});
  };
  for (int threads : {1, 2}) {
    for (int rows : {1, 8, 128, 512}) add(rows, DType::kQ4_1, threads);
  }
  for (DType dtype : {DType::kF16, DType::kQ4_0, DType::kQ5_1, DType::kQ8_0}) {
    for (int rows : {1, 128}) add(rows, dtype, 2);
  }
  b->UseRealTime()->MeasureProcessCPUTime()->Unit(benchmark::kMicrosecond);
}
BENCHMARK(BM_Layers)->Apply(Arguments);
BENCHMARK(BM_Head)
    ->Args({1, static_cast<int>(DType::kQ8_0), 1})
    ->Args({1, static_cast<int>(DType::kQ8_0), 2})
    ->UseRealTime()
    ->MeasureProcessCPUTime()
    ->Unit(benchmark::kMicrosecond);

void BM_Region(benchmark::State& state) {
  ThreadPool pool(2);
  for (auto _ : state) pool.ParallelFor(2, 1, [](int64_t, int64_t, int) {});
}
BENCHMARK(BM_Region)->UseRealTime();

}  // namespace
}  // namespace latentd

BENCHMARK_MAIN();
