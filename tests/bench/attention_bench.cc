// Attention and append of one layer with SmolLM2-135M's heads (9 query and 3 KV heads of 64), on
// all processors: `attention_bench --benchmark_repetitions=9`, and read the line "min", for other
// work on the machine only slows it.
//
// GLIBC_TUNABLES=glibc.malloc.hugetlb=1 gives the caches the huge pages that the engine's pool has.
//
// Every iteration takes another of kLayers caches, as a decode step does, so nothing stays in the
// caches of a core. GB/s counts the bytes of the visible blocks once; GMAC/s the products that the
// path asks for (integer ones included).

#include <algorithm>
#include <memory>
#include <thread>
#include <vector>

#include "benchmark/benchmark.h"
#include "kernels/cpu/attention.h"
#include "tests/testing/attention_case.h"

namespace latentd {
namespace {

constexpr int kLayers = 30;
constexpr int kHeads = 9, kKvHeads = 3, kHeadDim = 64;

enum Cache : int {
  kFullF16,
  kFullInt4,
  kGroupInt4,
  kHeadInt4,
  kGroupF16,
  kSmall,
  kSmallPlain,
  kBalanced,
  kAbsorbedInt4,
  kAbsorbedSmall
};

AttentionShape ShapeOf(int cache) {
  const auto one = [](int dims, Codec codec) {
    return std::vector<Segment>{{.dims = dims, .codec = codec}};
  };
  AttentionShape shape = {.path = AttentionPath::kReconstruct,
                          .num_heads = kHeads,
                          .num_kv_heads = kKvHeads,
                          .head_dim = kHeadDim,
                          .k_latent_heads = 1,
                          .v_latent_heads = 1};
  shape.k = shape.v = one(96, Codec::kInt4);
  switch (cache) {
    case kFullF16:
      shape.path = AttentionPath::kFull;
      shape.k = shape.v = one(kHeadDim, Codec::kF16);
      break;
    case kFullInt4:
      shape.path = AttentionPath::kFull;
      shape.k = shape.v = one(kHeadDim, Codec::kInt4);
      break;
    case kHeadInt4:
      shape.k_latent_heads = shape.v_latent_heads = kKvHeads;
      shape.k = shape.v = one(32, Codec::kInt4);
      break;
    case kGroupF16:
      shape.k = shape.v = one(96, Codec::kF16);
      break;
    case kAbsorbedSmall:
      shape.path = AttentionPath::kAbsorbed;
      [[fallthrough]];
    case kSmall:
      shape.own_page = true;
      [[fallthrough]];
    case kSmallPlain:
      shape.sinks = 4;
      shape.k = {{.dims = 32, .codec = Codec::kInt4}, {.dims = 64, .codec = Codec::kInt2}};
      shape.v = {{.dims = 64, .codec = Codec::kInt4}, {.dims = 96, .codec = Codec::kInt2}};
      break;
    case kBalanced:
      shape.own_page = true;
      shape.sinks = 4;
      shape.k = {{.dims = 64, .codec = Codec::kInt4}, {.dims = 96, .codec = Codec::kInt2}};
      shape.v = {{.dims = 128, .codec = Codec::kInt4}, {.dims = 64, .codec = Codec::kInt2}};
      break;
    case kAbsorbedInt4:
      shape.path = AttentionPath::kAbsorbed;
      break;
    default:
      break;
  }
  return shape;
}

const char* NameOf(int cache) {
  constexpr const char* kNames[] = {"full f16",
                                    "full int4",
                                    "latents int4, 1 group",
                                    "int4, 3 groups",
                                    "f16, 1 group",
                                    "4/2 bits, sinks, own page (7.7x)",
                                    "4/2 bits, sinks (7.7x)",
                                    "4/2 bits, sinks, own page (5.3x)",
                                    "absorbed int4, 1 group",
                                    "absorbed 4/2 bits, sinks, own page"};
  return kNames[cache];
}

// Products of one query row and token, and of one token alone (keys rebuilt).
int64_t ProductsPerQuery(const AttentionSpec& spec) {
  const int k = spec.path == AttentionPath::kAbsorbed ? spec.cache.k.dims() : spec.head_dim;
  return int64_t{spec.num_heads} * (k + spec.cache.v.dims());
}
int64_t ProductsPerToken(const AttentionSpec& spec) {
  return spec.path == AttentionPath::kReconstruct
             ? int64_t{spec.num_kv_heads} * spec.head_dim * spec.cache.k.dims()
             : 0;
}

double Least(const std::vector<double>& values) { return *std::ranges::min_element(values); }

struct Layers {
  Layers(const AttentionCase& c, int32_t context, int count)
      : plan(*PrepareCpuAttention(c.spec())) {
    for (int l = 0; l < count; ++l) {
      layers.push_back(std::make_unique<PagedCache>(c.spec().cache, std::vector<int32_t>{context}));
    }
  }
  std::unique_ptr<AttentionPlan> plan;
  std::vector<std::unique_ptr<PagedCache>> layers;
};

// range(0): cache; range(1): context; range(2): query rows, the context's last.
void BM_Attention(benchmark::State& state) {
  const auto context = static_cast<int32_t>(state.range(1));
  const auto rows = static_cast<int32_t>(state.range(2));
  const AttentionCase c(ShapeOf(static_cast<int>(state.range(0))), context);
  const int threads = static_cast<int>(std::thread::hardware_concurrency());
  ThreadPool pool(threads);
  Scratch scratch(threads);
  Layers layers(c, context, rows > 1 ? 1 : kLayers);
  const AttentionInputs inputs(c, context);
  const PagedStep before = layers.layers[0]->StepBeforeLast(rows);
  const PagedStep step = layers.layers[0]->LastStep(rows);
  for (const auto& cache : layers.layers) {
    for (const PagedStep* part : {&before, &step}) {
      CpuAppendCache(pool, AppendRows(c, inputs, *part).Params(*layers.plan, cache->View(*part)));
    }
  }
  const std::vector<float> q = RowsOf(step, inputs.q, c.q_width());
  std::vector<float> out(q.size());
  size_t layer = 0;
  for (auto _ : state) {
    PagedCache& cache = *layers.layers[layer++ % layers.layers.size()];
    CpuAttention(
        pool, scratch,
        {.plan = layers.plan.get(), .cache = cache.View(step), .q = q.data(), .out = out.data()});
    benchmark::ClobberMemory();
  }
  const AttentionSpec& spec = c.spec();
  const double blocks = (context + kBlockTokens - 1) / kBlockTokens;
  const double pairs = 1.0 * rows * context - 0.5 * rows * (rows - 1);
  const double products = pairs * static_cast<double>(ProductsPerQuery(spec)) +
                          context * static_cast<double>(ProductsPerToken(spec));
  const auto rate = benchmark::Counter::kIsIterationInvariantRate;
  state.counters["GB/s"] =
      benchmark::Counter(1e-9 * blocks * static_cast<double>(spec.cache.block_bytes()), rate);
  state.counters["GMAC/s"] = benchmark::Counter(1e-9 * products, rate);
  state.SetLabel(NameOf(static_cast<int>(state.range(0))));
}
BENCHMARK(BM_Attention)
    ->ArgNames({"cache", "context", "rows"})
    ->ArgsProduct({{kFullF16, kSmall, kBalanced, kAbsorbedSmall}, {128, 512, 4096, 8000}, {1}})
    ->ArgsProduct({{kFullInt4, kGroupInt4, kHeadInt4, kGroupF16, kSmallPlain, kAbsorbedInt4},
                   {8000},
                   {1}})
    ->ArgsProduct({{kFullF16, kHeadInt4, kSmall, kBalanced, kAbsorbedSmall}, {512, 4608}, {512}})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime()
    ->ComputeStatistics("min", Least);

// range(0): cache; range(1): rows of the step.
void BM_AppendCache(benchmark::State& state) {
  const auto rows = static_cast<int32_t>(state.range(1));
  const AttentionCase c(ShapeOf(static_cast<int>(state.range(0))), rows);
  const int threads = static_cast<int>(std::thread::hardware_concurrency());
  ThreadPool pool(threads);
  const Layers layers(c, rows, 1);
  const AttentionInputs inputs(c, rows);
  const PagedStep step = layers.layers[0]->WholeStep();
  const AppendRows appended(c, inputs, step);
  const AppendCacheParams params = appended.Params(*layers.plan, layers.layers[0]->View(step));
  for (auto _ : state) {
    CpuAppendCache(pool, params);
    benchmark::ClobberMemory();
  }
  state.SetLabel(NameOf(static_cast<int>(state.range(0))));
}
BENCHMARK(BM_AppendCache)
    ->ArgNames({"cache", "rows"})
    ->ArgsProduct({{kFullF16, kGroupInt4, kSmall}, {1, 512}})
    ->Unit(benchmark::kMicrosecond)
    ->UseRealTime()
    ->ComputeStatistics("min", Least);

}  // namespace
}  // namespace latentd

BENCHMARK_MAIN();
