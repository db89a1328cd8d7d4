// Decode and prefill attention on fp16 tensor cores (sm_80 and later), for every path and codec.
//
// A block of threads attends for one KV head, one split of the context and as many rows of one
// sequence as fill its query tiles. It walks over the split's pages: keys are decoded, or rebuilt
// from latents, once for all its queries; then scores, online softmax, values. What it leaves for
// each query, a maximum, a sum and the weighted latents, the merge kernel folds in the order of the
// splits, after the exact sinks, and brings through v_up.
//
// An output row depends on its own query alone: its products are rows of the tensor cores' tiles,
// its sums run over tokens in one order, and pages that it does not see add zeros.

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "kernels/cache_view.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_merge.h"
#include "kernels/cuda/attention_page.cuh"
#include "kernels/cuda/attention_plan.h"

namespace latentd {
namespace {

constexpr int64_t kPartialFloats = int64_t{1} << 26;  // at most, of one launch

// One pass over a page for the rows that read it so. The sums [queries][v dims] lie in registers:
// a warp has the dims 8 (kValueTiles warp + n).
template <int kTiles, int kValueTiles>
struct Attend {
  __device__ __forceinline__ Attend(const AttendArguments& p, const RowTile& tile, uint8_t* memory)
      : p_(p), tile_(tile), parts_(p.plan, kTiles) {
    auto* halves = reinterpret_cast<__half*>(memory);
    queries_ = halves;
    keys_ = halves + parts_.keys;
    latents_ = halves + parts_.latents;
    weights_ = halves + parts_.weights;
    constexpr int kQueries = kTiles * kTileQueries;
    scores_ = reinterpret_cast<float*>(halves + parts_.floats);
    state_.largest = scores_ + kQueries * kScoreStride;
    state_.sum = state_.largest + kQueries;
    state_.correction = state_.sum + kQueries;
    bad_ = reinterpret_cast<int*>(state_.correction + kQueries);
    count_ = tile.rows * (p.plan.num_heads / p.plan.num_kv_heads);
    for (int i = threadIdx.x; i < kQueries; i += kThreads) {
      state_.largest[i] = -INFINITY;
      state_.sum[i] = 0.0f;
    }
    LoadQueries(p, tile, count_, kQueries, parts_.query_stride, queries_);
  }

  __device__ __forceinline__ void Page(const PagePass& pass) {
    const PlanView& plan = p_.plan;
    const PageView& format = pass.own ? plan.own : plan.coded;
    const int index = pass.start / kBlockTokens;
    const uint8_t* page =
        pass.own
            ? OwnPageOf(plan, p_.step, tile_.sequence, index)
            : p_.step.layer + plan.coded.bytes *
                                  p_.step.block_table[tile_.sequence * p_.step.max_blocks + index];
    const int head = blockIdx.y, last = tile_.position + tile_.rows - 1 - pass.start;
    const uint8_t* k =
        page + head / (plan.num_kv_heads / format.k.latent_heads) * int64_t{format.k.head_bytes};
    const uint8_t* v =
        page + format.v_offset +
        head / (plan.num_kv_heads / format.v.latent_heads) * int64_t{format.v.head_bytes};
    const bool rebuilt = plan.path == AttentionPath::kReconstruct;
    const int stride = rebuilt ? parts_.latent_stride : KeyStride();
    __syncthreads();  // the last page's values were read
    DecodePage<kThreads, TileOrder::kDimMajor>(format.k, k, last, stride, latents_, nullptr);
    if (threadIdx.x < kBlockTokens) bad_[threadIdx.x] = 0;
    __syncthreads();
    if (rebuilt) {
      RebuildKeys(plan, latents_, stride, page, format, pass.start, parts_.query_stride, keys_);
      __syncthreads();
    }
    Scores<kTiles>(queries_, rebuilt ? keys_ : latents_, parts_.query_stride,
                   rebuilt ? parts_.query_stride : stride, KeyDims(plan), scores_);
    __syncthreads();
    DecodePage<kThreads, TileOrder::kTokenMajor>(format.v, v, last, parts_.latent_stride, latents_,
                                                 bad_);
    __syncthreads();
    Softmax(plan, tile_, count_, kTiles * kTileQueries, pass, scores_, bad_, state_, weights_);
    __syncthreads();
    AddValues();
  }

  __device__ __forceinline__ void Write(int split) {
    const PlanView& plan = p_.plan;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, v_dims = plan.coded.v.dims;
    const int local_row = (static_cast<int>(blockIdx.x)) * p_.rows_per_tile;
    const auto at = [&](int query) {
      const auto [row, head] = PlaceOf(plan, query);
      return p_.partials +
             ((int64_t{local_row + row} * plan.num_heads + head) * p_.max_splits + split) *
                 (2 + v_dims);
    };
    __syncthreads();
    for (int query = threadIdx.x; query < count_; query += kThreads) {
      at(query)[0] = state_.largest[query];
      at(query)[1] = state_.sum[query];
    }
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      for (int half = 0; half < 2; ++half) {
        const int query = 16 * m + lane / 4 + 8 * half;
        if (query >= count_) continue;
        float* to = at(query) + 2;
#pragma unroll
        for (int n = 0; n < kValueTiles; ++n) {
          const int dim = 8 * (warp * kValueTiles + n) + lane % 4 * 2;
          if (dim >= v_dims) break;
          to[dim] = sums_[m][n].x[2 * half];
          to[dim + 1] = sums_[m][n].x[2 * half + 1];
        }
      }
    }
  }

 private:
  __device__ __forceinline__ int KeyStride() const { return p_.plan.coded.k.dims + kPadding; }

  __device__ __forceinline__ void AddValues() {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, v_dims = p_.plan.coded.v.dims;
#pragma unroll
    for (int m = 0; m < kTiles; ++m) {
      const float low = state_.correction[16 * m + lane / 4];
      const float high = state_.correction[16 * m + lane / 4 + 8];
#pragma unroll
      for (int n = 0; n < kValueTiles; ++n) {
        sums_[m][n].x[0] *= low;
        sums_[m][n].x[1] *= low;
        sums_[m][n].x[2] *= high;
        sums_[m][n].x[3] *= high;
      }
    }
    for (int t = 0; t < kBlockTokens; t += 16) {
      FragmentA a[kTiles];
#pragma unroll
      for (int m = 0; m < kTiles; ++m) {
        a[m] = LoadA(weights_ + 16 * m * kWeightStride + t, kWeightStride);
      }
#pragma unroll
      for (int n = 0; n < kValueTiles; ++n) {
        const int dim = 8 * (warp * kValueTiles + n);
        if (dim >= v_dims) break;
        const FragmentB b =
            LoadRows(latents_ + t * parts_.latent_stride + dim, parts_.latent_stride);
#pragma unroll
        for (int m = 0; m < kTiles; ++m) MultiplyAdd(a[m], b, sums_[m][n]);
      }
    }
  }

  const AttendArguments& p_;
  const RowTile tile_;
  const SharedParts parts_;
  int count_;  // queries
  __half *queries_, *keys_, *latents_, *weights_;
  float* scores_;
  SoftmaxState state_;
  int* bad_;
  FragmentD sums_[kTiles][kValueTiles];
};

template <int kTiles, int kValueTiles>
__global__ void __launch_bounds__(kThreads)
    AttendSplits(const __grid_constant__ AttendArguments p) {
  extern __shared__ __align__(128) uint8_t memory[];
  const RowTile tile = TileOf(p.step, p.rows_per_tile, p.first_tile + static_cast<int>(blockIdx.x));
  if (tile.rows == 0) return;
  const int split = blockIdx.z, last_position = tile.position + tile.rows - 1;
  const int first = max(FirstVisible(p.plan, tile.position), split * kSplitTokens);
  const int end = min(last_position + 1, (split + 1) * kSplitTokens);
  Attend<kTiles, kValueTiles> attend(p, tile, memory);
  for (int start = first / kBlockTokens * kBlockTokens; start < end; start += kBlockTokens) {
    // Rows after the page, and without own pages those inside of it, read its codes.
    const bool coded = !p.plan.own_page || last_position >= start + kBlockTokens;
    const bool own = p.plan.own_page && tile.position < start + kBlockTokens;
    if (coded) attend.Page({.start = start, .own = false});
    if (own) attend.Page({.start = start, .own = true});
  }
  attend.Write(split);
}

using Kernel = void (*)(AttendArguments);

struct KernelChoice {
  Kernel kernel;
  int tiles, value_tiles;
};

// From the smallest up.
constexpr KernelChoice kOneTile[] = {{AttendSplits<1, 2>, 1, 2},
                                     {AttendSplits<1, 4>, 1, 4},
                                     {AttendSplits<1, 8>, 1, 8},
                                     {AttendSplits<1, 16>, 1, 16},
                                     {AttendSplits<1, 32>, 1, 32}};
constexpr KernelChoice kFourTiles[] = {{AttendSplits<4, 2>, 4, 2}, {AttendSplits<4, 4>, 4, 4}};

// Null when none is large enough.
const KernelChoice* ChoiceOf(absl::Span<const KernelChoice> kernels, int v_dims) {
  for (const KernelChoice& choice : kernels) {
    if (8 * kWarps * choice.value_tiles >= v_dims) return &choice;
  }
  return nullptr;
}

int QueriesPerKv(const PlanView& plan) { return plan.num_heads / plan.num_kv_heads; }

}  // namespace

absl::Status CudaAttention::Check(CudaDevice& device, const PlanView& plan) {
  constexpr int kMaxValueDims = 1024;
  const int bytes = SharedParts(plan, 1).bytes;
  if (QueriesPerKv(plan) > kTileQueries) {
    return absl::UnimplementedError(absl::StrCat("attention on CUDA: ", QueriesPerKv(plan),
                                                 " query heads share a KV head, the most are ",
                                                 kTileQueries));
  }
  if (plan.coded.v.dims > kMaxValueDims) {
    return absl::UnimplementedError(absl::StrCat("attention on CUDA: a latent head has ",
                                                 plan.coded.v.dims, " V dims, the most are ",
                                                 kMaxValueDims));
  }
  if (bytes > device.shared_bytes()) {
    return absl::UnimplementedError(
        absl::StrCat("attention on CUDA: latent heads of ", plan.coded.k.dims, " K dims and ",
                     plan.coded.v.dims, " V dims take ", bytes, " bytes of shared memory, ",
                     device.name(), " has ", device.shared_bytes()));
  }
  return absl::OkStatus();
}

void CudaAttention::Run(StepMemory& step, const AttentionParams& p) {
  const auto& cuda_plan = static_cast<const CudaAttentionPlan&>(*p.plan);
  const PlanView& plan = cuda_plan.view();
  CheckView(cuda_plan.spec().cache, p.cache);
  const int rows = p.cache.cu_q_lens.empty() ? 0 : p.cache.cu_q_lens.back();
  if (rows == 0) return;
  int longest = 0, most_rows = 0;
  for (size_t i = 0; i < p.cache.kv_lens.size(); ++i) {
    longest = std::max(longest, p.cache.kv_lens[i]);
    most_rows = std::max(most_rows, p.cache.cu_q_lens[i + 1] - p.cache.cu_q_lens[i]);
  }
  const KernelChoice* choice = ChoiceOf(kOneTile, plan.coded.v.dims);
  const int per_kv = QueriesPerKv(plan);
  if (most_rows * per_kv > kTileQueries) {
    const KernelChoice* four = ChoiceOf(kFourTiles, plan.coded.v.dims);
    if (four != nullptr && SharedParts(plan, four->tiles).bytes <= device_.shared_bytes()) {
      choice = four;
    }
  }
  LATENTD_CHECK(choice != nullptr);
  const int bytes = SharedParts(plan, choice->tiles).bytes;
  device_.Check(cudaFuncSetAttribute(reinterpret_cast<const void*>(choice->kernel),
                                     cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
                "shared memory of attention");

  AttendArguments arguments{.plan = plan, .step = step.View(p.cache), .q = p.q};
  arguments.rows_per_tile = choice->tiles * kTileQueries / per_kv;
  arguments.max_splits = (longest + kSplitTokens - 1) / kSplitTokens;
  const int sequences = static_cast<int>(p.cache.kv_lens.size());
  const int tiles = rows / arguments.rows_per_tile + sequences;
  const int64_t tile_floats = int64_t{arguments.rows_per_tile} * plan.num_heads *
                              arguments.max_splits * (2 + plan.coded.v.dims);
  const int at_once = static_cast<int>(std::clamp<int64_t>(kPartialFloats / tile_floats, 1, tiles));
  const absl::Status memory = partials_.Reserve(device_, at_once * tile_floats);
  if (!memory.ok()) return device_.Fail(std::string(memory.message()));
  arguments.partials = partials_.data();
  for (int first = 0; first < tiles; first += at_once) {
    const int count = std::min(at_once, tiles - first);
    arguments.first_tile = first;
    const dim3 grid(count, plan.num_kv_heads, arguments.max_splits);
    choice->kernel<<<grid, kThreads, bytes, device_.stream()>>>(arguments);
    device_.Check(cudaGetLastError(), "attention");
    CudaMergeSplits(device_, {.plan = plan,
                              .step = arguments.step,
                              .q = p.q,
                              .partials = arguments.partials,
                              .first_tile = first,
                              .tiles = count,
                              .rows_per_tile = arguments.rows_per_tile,
                              .max_splits = arguments.max_splits,
                              .out = p.out});
  }
}

}  // namespace latentd
