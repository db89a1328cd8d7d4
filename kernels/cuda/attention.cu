// Attention on fp16 tensor cores (sm_80 and later), for every path and codec.
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
#include "kernels/cuda/decode_work.cuh"
#include "kernels/cuda/launch.cuh"

namespace latentd {
namespace {

constexpr int64_t kPartialFloats = int64_t{1} << 26;  // at most, of one launch

// One pass over a page for the rows that read it so. The sums [queries][v dims] lie in registers:
// a warp has the dims 8 (kValueTiles warp + n).
template <int kTiles, int kValueTiles>
struct Attend {
  __device__ __forceinline__ Attend(const AttendArguments& p, const RowTile& tile, uint8_t* memory)
      : p_(p), tile_(tile), parts_(p.plan, kTiles, p.fetches) {
    auto* halves = reinterpret_cast<__half*>(memory);
    queries_ = halves;
    keys_ = halves + parts_.keys;
    latents_ = halves + parts_.latents;
    weights_ = halves + parts_.weights;
    raw_ = reinterpret_cast<uint8_t*>(halves + parts_.raw);
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

  // Begins to fetch the codes of the page at `start`; none from `end` on.
  __device__ __forceinline__ void FetchKeys(int start, int end) {
    const uint8_t* page = start < end ? CodedPage(start) : nullptr;
    Fetch(page == nullptr ? page : KeysOf(p_.plan.coded, page),
          page == nullptr ? 0 : p_.plan.coded.k.head_bytes, raw_);
  }
  __device__ __forceinline__ void FetchValues(int start, int end) {
    const uint8_t* page = start < end ? CodedPage(start) : nullptr;
    Fetch(page == nullptr ? page : ValuesOf(p_.plan.coded, page),
          page == nullptr ? 0 : p_.plan.coded.v.head_bytes, raw_ + p_.plan.coded.k.head_bytes);
  }

  // Codes of the page have been fetched, and those of `next` will be, unless that is `end`.
  __device__ __forceinline__ void Page(const PagePass& pass, int next, int end) {
    const PlanView& plan = p_.plan;
    const PageView& format = pass.own ? plan.own : plan.coded;
    const int last = tile_.position + tile_.rows - 1 - pass.start;
    const uint8_t* page = pass.own
                              ? OwnPageOf(plan, p_.step, tile_.sequence, pass.start / kBlockTokens)
                              : CodedPage(pass.start);
    const bool fetched = p_.fetches && !pass.own;
    const uint8_t* k = fetched ? raw_ : KeysOf(format, page);
    const uint8_t* v = fetched ? raw_ + format.k.head_bytes : ValuesOf(format, page);
    const bool rebuilt = plan.path == AttentionPath::kReconstruct;
    const int stride = rebuilt ? parts_.latent_stride : KeyStride();
    if (fetched) WaitForCopies<1>();
    __syncthreads();  // the last page's values were read, this one's keys are there
    DecodePage<kThreads, TileOrder::kDimMajor>(format.k, k, last, stride, latents_, nullptr);
    if (threadIdx.x < kBlockTokens) bad_[threadIdx.x] = 0;
    __syncthreads();
    if (fetched) FetchKeys(next, end);
    if (rebuilt) {
      RebuildKeys(plan, latents_, stride, page, format, pass.start, parts_.query_stride, keys_);
      __syncthreads();
    }
    Scores<kTiles>(queries_, rebuilt ? keys_ : latents_, parts_.query_stride,
                   rebuilt ? parts_.query_stride : stride, KeyDims(plan), scores_);
    if (fetched) WaitForCopies<1>();
    __syncthreads();
    DecodePage<kThreads, TileOrder::kTokenMajor>(format.v, v, last, parts_.latent_stride, latents_,
                                                 bad_);
    __syncthreads();
    if (fetched) FetchValues(next, end);
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
  __device__ __forceinline__ const uint8_t* CodedPage(int start) const {
    return p_.step.layer +
           p_.plan.coded.bytes *
               p_.step.block_table[tile_.sequence * p_.step.max_blocks + start / kBlockTokens];
  }
  // The KV head's latent head in a page.
  __device__ __forceinline__ const uint8_t* KeysOf(const PageView& format,
                                                   const uint8_t* page) const {
    const int head = blockIdx.y / (p_.plan.num_kv_heads / format.k.latent_heads);
    return page + int64_t{head} * format.k.head_bytes;
  }
  __device__ __forceinline__ const uint8_t* ValuesOf(const PageView& format,
                                                     const uint8_t* page) const {
    const int head = blockIdx.y / (p_.plan.num_kv_heads / format.v.latent_heads);
    return page + format.v_offset + int64_t{head} * format.v.head_bytes;
  }
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
  uint8_t* raw_;
  float* scores_;
  SoftmaxState state_;
  int* bad_;
  FragmentD sums_[kTiles][kValueTiles];
};

// The rows of this block: none where another launch does them.
__device__ inline RowTile TileOfBlock(const AttendArguments& p) {
  const int index = static_cast<int>(blockIdx.x);
  if (p.part == AttendPart::kOwnPages) {
    return {.sequence = index,
            .first_row = p.step.cu_q_lens[index],
            .rows = IsDecoded(p.step, index) ? 1 : 0,
            .position = p.step.kv_lens[index] - 1};
  }
  RowTile tile = TileOf(p.step, p.rows_per_tile, p.first_tile + index);
  if (p.part == AttendPart::kOthers && tile.rows > 0 && IsDecoded(p.step, tile.sequence)) {
    tile.rows = 0;
  }
  return tile;
}

template <int kTiles, int kValueTiles>
__global__ void __launch_bounds__(kThreads)
    AttendSplits(const __grid_constant__ AttendArguments p) {
  uint8_t* memory = SharedMemory();
  const RowTile tile = TileOfBlock(p);
  if (tile.rows == 0) return;
  const int split = blockIdx.z, last_position = tile.position + tile.rows - 1;
  int first = max(FirstVisible(p.plan, tile.position), split * kSplitTokens);
  int end = min(last_position + 1, (split + 1) * kSplitTokens);
  if (p.part == AttendPart::kOwnPages) {
    first = last_position;
    end = last_position + 1;
  }
  Attend<kTiles, kValueTiles> attend(p, tile, memory);
  // Rows after a page, and without own pages those inside of it, read its codes.
  const int first_page = first / kBlockTokens * kBlockTokens;
  const int coded_end =
      p.plan.own_page ? min(end, last_position / kBlockTokens * kBlockTokens) : end;
  if (p.fetches) {
    attend.FetchKeys(first_page, coded_end);
    attend.FetchValues(first_page, coded_end);
  }
  for (int start = first_page; start < end; start += kBlockTokens) {
    if (start < coded_end) {
      attend.Page({.start = start, .own = false}, start + kBlockTokens, coded_end);
    }
    if (p.plan.own_page && tile.position < start + kBlockTokens) {
      attend.Page({.start = start, .own = true}, start, start);
    }
  }
  attend.Write(split);
}

struct KernelChoice {
  void (*kernel)(AttendArguments);
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

void LaunchChoice(CudaDevice& device, const KernelChoice& choice, const dim3& grid,
                  AttendArguments arguments) {
  arguments.fetches =
      SharedParts(arguments.plan, choice.tiles, /*fetches=*/true).bytes <= device.shared_bytes();
  const int bytes = SharedParts(arguments.plan, choice.tiles, arguments.fetches).bytes;
  Launch(device, "attention", choice.kernel, {grid, kThreads, bytes}, arguments);
}

}  // namespace

absl::Status CudaAttention::Check(CudaDevice& device, const PlanView& plan) {
  constexpr int kMaxValueDims = 1024;
  const int bytes = SharedParts(plan, 1, /*fetches=*/false).bytes;
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
  const int sequences = static_cast<int>(p.cache.kv_lens.size());
  int longest = 0, most_rows = 0;
  bool has_decoded = false;
  for (size_t i = 0; i < p.cache.kv_lens.size(); ++i) {
    const int of_sequence = p.cache.cu_q_lens[i + 1] - p.cache.cu_q_lens[i];
    longest = std::max(longest, p.cache.kv_lens[i]);
    most_rows = std::max(most_rows, of_sequence);
    has_decoded |= of_sequence == 1;
  }
  const KernelChoice* choice = ChoiceOf(kOneTile, plan.coded.v.dims);
  const int per_kv = QueriesPerKv(plan);
  if (most_rows * per_kv > kTileQueries) {
    const KernelChoice* four = ChoiceOf(kFourTiles, plan.coded.v.dims);
    if (four != nullptr &&
        SharedParts(plan, four->tiles, /*fetches=*/false).bytes <= device_.shared_bytes()) {
      choice = four;
    }
  }
  LATENTD_CHECK(choice != nullptr);
  AttendArguments arguments{.plan = plan, .step = step.View(p.cache), .q = p.q};
  if (plan.decode.kernel != DecodeKernel::kNone && has_decoded &&
      sequences <= kMostDecodeSequences) {
    Decode(cuda_plan, arguments.step, p.q, p.out);
    if (most_rows == 1) return;
    arguments.part = AttendPart::kOthers;
  }
  arguments.rows_per_tile = choice->tiles * kTileQueries / per_kv;
  arguments.max_splits = (longest + kSplitTokens - 1) / kSplitTokens;
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
    LaunchChoice(device_, *choice, grid, arguments);
    CudaMergeSplits(device_, {.plan = plan,
                              .step = arguments.step,
                              .q = p.q,
                              .out = p.out,
                              .partials = arguments.partials,
                              .first_tile = first,
                              .tiles = count,
                              .rows_per_tile = arguments.rows_per_tile,
                              .max_splits = arguments.max_splits,
                              .decoded = arguments.part == AttendPart::kOthers});
  }
}

void CudaAttention::AttendOwnPages(const PlanView& plan, const StepView& step, const float* q,
                                   float* partials) {
  const dim3 grid(step.num_sequences, plan.num_kv_heads);
  LaunchChoice(device_, *ChoiceOf(kOneTile, plan.coded.v.dims), grid,
               {.plan = plan,
                .step = step,
                .q = q,
                .partials = partials,
                .rows_per_tile = 1,
                .max_splits = 1,
                .part = AttendPart::kOwnPages});
}

}  // namespace latentd
