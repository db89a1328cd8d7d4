// A step's rows become codes in their blocks, 16-bit latents in their own pages, exact sinks in
// their seats, and inverse norms of their keys.
//
// EncodeRows: a CTA for a segment of two rows (encode_row.cuh); reads 4 bytes a value once and
// writes its code. A symmetric codec takes about 100 operations a value: arithmetic bounds a
// prefill, a decode step the fetching of instructions and latency. WriteKeyNorms: head_dim x dims
// multiplications a token, KV head and page kind, bound by them and by shared memory in a prefill,
// in a decode step by reading k_up once. MovePages and WriteSinks only copy, and only in the few
// steps that need them.

#include "kernels/cuda/append_cache.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cache_view.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/cache_tile.cuh"
#include "kernels/cuda/encode_row.cuh"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/rows.cuh"

namespace latentd {
namespace {

struct AppendArguments {
  PlanView plan;
  StepView step;
  const float* k;  // the rest as AppendCacheParams
  const float* v;
  int64_t k_stride;
  int64_t v_stride;
  const float* sink_k;
  const float* sink_v;
};

// ---- What a sequence's rows, at positions [first, kv_len), do to its seat ----

// They leave the page that they continue: its earlier tokens must be where the step reads it.
__host__ __device__ inline bool MovesPage(int first, int kv_len) {
  return first < kv_len && first % kBlockTokens != 0 &&
         first / kBlockTokens != (kv_len - 1) / kBlockTokens;
}

__host__ __device__ inline int NumSinkRows(int sinks, int first, int kv_len) {
  const int end = sinks < kv_len ? sinks : kv_len;
  return end > first ? end - first : 0;
}

__device__ inline int FirstPosition(const StepView& step, int i) {
  return step.kv_lens[i] - (step.cu_q_lens[i + 1] - step.cu_q_lens[i]);
}

constexpr int kCtasPerPage = 16;

// A row of CTAs for every sequence, before EncodeRows writes to its seat.
__global__ void __launch_bounds__(kRowThreads)
    MovePages(const __grid_constant__ AppendArguments p) {
  const int i = static_cast<int>(blockIdx.x);
  const int first = FirstPosition(p.step, i), kv_len = p.step.kv_lens[i];
  if (!MovesPage(first, kv_len)) return;
  const auto* from =
      reinterpret_cast<const uint4*>(OwnPageOf(p.plan, p.step, i, (kv_len - 1) / kBlockTokens));
  auto* to = reinterpret_cast<uint4*>(OwnPageOf(p.plan, p.step, i, first / kBlockTokens));
  const int64_t count = p.plan.own.bytes / int64_t{sizeof(uint4)};
  for (int64_t n = blockIdx.y * kRowThreads + threadIdx.x; n < count;
       n += kCtasPerPage * kRowThreads) {
    to[n] = from[n];
  }
}

// A CTA for every sequence.
__global__ void __launch_bounds__(kRowThreads)
    WriteSinks(const __grid_constant__ AppendArguments p) {
  const int i = static_cast<int>(blockIdx.x);
  const int first = FirstPosition(p.step, i);
  const int rows = NumSinkRows(p.plan.sinks, first, p.step.kv_lens[i]);
  if (rows == 0) return;
  float earlier = 0.0f;  // rows of the sequences before, at most 64 each: exact in fp32
  for (int j = static_cast<int>(threadIdx.x); j < i; j += kRowThreads) {
    earlier +=
        static_cast<float>(NumSinkRows(p.plan.sinks, FirstPosition(p.step, j), p.step.kv_lens[j]));
  }
  const int64_t dims = p.plan.sink_dims;
  const int64_t from = static_cast<int64_t>(BlockSum(earlier)) * dims;
  uint16_t* keys = reinterpret_cast<uint16_t*>(SinksOf(p.plan, p.step, i)) + first * dims;
  uint16_t* values = keys + p.plan.sinks * dims;
  for (int64_t n = threadIdx.x; n < rows * dims; n += kRowThreads) {
    keys[n] = HalfBits(p.sink_k[from + n]);
    values[n] = HalfBits(p.sink_v[from + n]);
  }
}

// ---- Rows ----

// A token of a block or of an own page. Without initialisers, for shared memory.
struct TokenPlace {
  uint8_t* page;
  int token;
};

// Where row `row` of the step goes.
__device__ inline TokenPlace PlaceOfRow(const AppendArguments& p, int row, bool own) {
  const int64_t slot = p.step.slots[row];
  const int token = static_cast<int>(slot % kBlockTokens);
  if (!own) return {p.step.layer + slot / kBlockTokens * p.plan.coded.bytes, token};
  const int i = SequenceOf(p.step, row);
  const int position = p.step.kv_lens[i] - (p.step.cu_q_lens[i + 1] - row);
  return {OwnPageOf(p.plan, p.step, i, position / kBlockTokens), token};
}

// A plane's row is encoded in pieces, the segments of its latent heads.
__host__ __device__ inline int NumPieces(const PlaneView& plane) {
  return plane.latent_heads * plane.num_segments;
}
__host__ __device__ inline int NumPieces(const PageView& page) {
  return NumPieces(page.k) + NumPieces(page.v);
}

// The most dims of a piece.
int LongestPiece(const PageView& page) {
  int dims = 0;
  for (const PlaneView* plane : {&page.k, &page.v}) {
    for (int s = 0; s < plane->num_segments; ++s) dims = std::max(dims, plane->segments[s].dims);
  }
  return dims;
}

// blockIdx.x: two rows; blockIdx.y: the piece, of the block's K plane, its V plane, then of the own
// page's. Shared memory: SharedRows.
__global__ void __launch_bounds__(kEncodeThreads)
    EncodeRows(const __grid_constant__ AppendArguments p) {
  const int row = static_cast<int>(blockIdx.x) * kEncodedRows + RowOfCta();
  int piece = static_cast<int>(blockIdx.y);
  const bool own = piece >= NumPieces(p.plan.coded);
  if (own) piece -= NumPieces(p.plan.coded);
  const PageView& page = own ? p.plan.own : p.plan.coded;
  const bool keys = piece < NumPieces(page.k);
  if (!keys) piece -= NumPieces(page.k);
  const PlaneView& plane = keys ? page.k : page.v;
  int head = 0;
  for (; piece >= plane.num_segments; piece -= plane.num_segments) ++head;
  const SegmentView& segment = plane.segments[piece];

  // A full head's row lacks the dims that pad it.
  const int width = p.plan.path == AttentionPath::kFull ? p.plan.head_dim : plane.dims;
  const bool there = row < p.step.num_rows;
  const float* values = (keys ? p.k : p.v) + row * (keys ? p.k_stride : p.v_stride) +
                        int64_t{head} * width + segment.first_dim;
  const int count = there ? min(width - segment.first_dim, segment.dims) : 0;
  const SharedRows rows(SharedMemory(), segment.dims);
  const bool scaled = IsScaled(segment.codec);
  SegmentPlace to = {nullptr, 0};
  if (there) {
    const TokenPlace place = PlaceOfRow(p, row, own);
    to = {place.page + (keys ? 0 : page.v_offset) + int64_t{head} * plane.head_bytes, place.token};
  }
  WaitForKernelsBefore();
  if (!scaled) return PutWhole(segment, keys, values, count, to);
  rows.Load(values, count);
  __syncthreads();  // rows are there
  EncodeSegment(segment, keys, rows, to);
}

// ---- Key norms ----

constexpr int kDotLanes = 8;                        // share a key dim's sum over the latent
constexpr int kDotTeams = kRowThreads / kDotLanes;  // of a CTA
constexpr int kTeamDims = 4;                        // key dims of a team at a time
constexpr int kPassDims = kDotTeams * kTeamDims;    // of a CTA
constexpr int kChunkDims = kRowThreads;             // latent dims in shared memory at a time
constexpr int kTileTokens = 8;
static_assert(kChunkDims % (4 * kDotLanes) == 0, "chunks do not change a lane's dims");

__device__ inline float LatentAt(const PlaneView& plane, const uint8_t* head, int dim, int token) {
  int s = 0;
  while (dim >= plane.segments[s].first_dim + plane.segments[s].dims) ++s;
  const SegmentView& segment = plane.segments[s];
  const Affine affine = AffineAt(segment, head, token);
  const float stored =
      StoredAt<TileOrder::kDimMajor>(segment, head, dim - segment.first_dim, token);
  return affine.scale * stored + affine.offset;
}

template <int kTokens>
struct KeyNormMemory {
  TokenPlace places[kTokens];
  alignas(16) float latents[kTokens][kChunkDims];
};

// The latents' dims from `chunk` on, zeros past the last.
template <int kTokens>
__device__ inline void LoadChunk(const PlaneView& plane, int latent_head, int chunk,
                                 KeyNormMemory<kTokens>& memory) {
  const int thread = static_cast<int>(threadIdx.x), dim = chunk + thread;
  for (int n = 0; n < kTokens; ++n) {
    const TokenPlace& place = memory.places[n];
    const bool there = place.page != nullptr && dim < plane.dims;
    const uint8_t* head = place.page + int64_t{latent_head} * plane.head_bytes;
    memory.latents[n][thread] = there ? LatentAt(plane, head, dim, place.token) : 0.0f;
  }
}

// keys[j][n] += this lane's share of k_up . latent over a chunk of `count` latent dims. One
// accumulator, in one order, whatever kTokens is.
template <int kTokens>
__device__ inline void AddChunk(const float* const (&factors)[kTeamDims], int count,
                                const float (&latents)[kTokens][kChunkDims],
                                float (&keys)[kTeamDims][kTokens]) {
  for (int d = 4 * (threadIdx.x % kDotLanes); d < count; d += 4 * kDotLanes) {
    float4 factor[kTeamDims];
#pragma unroll
    for (int j = 0; j < kTeamDims; ++j) {
      factor[j] = __ldg(reinterpret_cast<const float4*>(factors[j] + d));
    }
#pragma unroll
    for (int n = 0; n < kTokens; ++n) {
      const float4 latent = *reinterpret_cast<const float4*>(&latents[n][d]);
#pragma unroll
      for (int j = 0; j < kTeamDims; ++j) {
        float key = fmaf(factor[j].x, latent.x, keys[j][n]);
        key = fmaf(factor[j].y, latent.y, key);
        key = fmaf(factor[j].z, latent.z, key);
        keys[j][n] = fmaf(factor[j].w, latent.w, key);
      }
    }
  }
}

// squares[n] += the square of one key dim, of whose sum every lane of the team has a share. The
// team's first lane counts it.
template <int kTokens>
__device__ inline void AddSquares(const float (&shares)[kTokens], float bias, bool counts,
                                  float (&squares)[kTokens]) {
#pragma unroll
  for (int n = 0; n < kTokens; ++n) {
    float key = shares[n];
    for (int lane = kDotLanes / 2; lane > 0; lane /= 2) {
      key += __shfl_xor_sync(kWholeWarp, key, lane);
    }
    key += bias;
    if (counts) squares[n] = fmaf(key, key, squares[n]);
  }
}

// The inverse norms of one KV head's keys of kTokens rows, from what EncodeRows wrote to their
// blocks (blockIdx.z 0) or own pages (1). A norm's bits do not depend on kTokens.
template <int kTokens>
__global__ void __launch_bounds__(kRowThreads)
    WriteKeyNorms(const __grid_constant__ AppendArguments p) {
  __shared__ KeyNormMemory<kTokens> memory;
  const bool own = blockIdx.z == 1;
  const PageView& page = own ? p.plan.own : p.plan.coded;
  const int kv_head = static_cast<int>(blockIdx.y), thread = static_cast<int>(threadIdx.x);
  const int latent_head = kv_head / (p.plan.num_kv_heads / page.k.latent_heads);
  const int team = thread / kDotLanes, dims = page.k.dims, head_dim = p.plan.head_dim;
  const int64_t first_factor = int64_t{kv_head} * head_dim;

  if (thread < kTokens) {
    const int row = static_cast<int>(blockIdx.x) * kTokens + thread;
    memory.places[thread] =
        row < p.step.num_rows ? PlaceOfRow(p, row, own) : TokenPlace{nullptr, 0};
  }

  float squares[kTokens] = {};
  for (int first = 0; first < head_dim; first += kPassDims) {
    float keys[kTeamDims][kTokens] = {};
    for (int chunk = 0; chunk < dims; chunk += kChunkDims) {
      __syncthreads();  // places are there, the last chunk has been read
      LoadChunk(page.k, latent_head, chunk, memory);
      __syncthreads();
      const float* factors[kTeamDims];
#pragma unroll
      for (int j = 0; j < kTeamDims; ++j) {
        const int dim = first + j * kDotTeams + team;
        factors[j] =
            p.plan.k_up + (first_factor + (dim < head_dim ? dim : head_dim - 1)) * dims + chunk;
      }
      const int left = dims - chunk;
      AddChunk<kTokens>(factors, left < kChunkDims ? left : kChunkDims, memory.latents, keys);
    }
#pragma unroll
    for (int j = 0; j < kTeamDims; ++j) {
      const int dim = first + j * kDotTeams + team;
      const bool counts = dim < head_dim && thread % kDotLanes == 0;
      const float bias =
          counts && p.plan.k_bias != nullptr ? p.plan.k_bias[first_factor + dim] : 0.0f;
      AddSquares<kTokens>(keys[j], bias, counts, squares);
    }
  }

#pragma unroll
  for (int n = 0; n < kTokens; ++n) {
    const float mean = BlockSum(squares[n]) / static_cast<float>(head_dim);
    const TokenPlace& place = memory.places[n];
    if (thread != 0 || place.page == nullptr) continue;
    const float inverse = 1.0f / sqrtf(mean + p.plan.k_norm_epsilon);
    auto* norms = reinterpret_cast<uint16_t*>(place.page + page.key_norm_offset);
    norms[kv_head * kBlockTokens + place.token] =
        HalfBits(inverse > kMaxKeyNorm ? kMaxKeyNorm : inverse);
  }
}

// ---- Launches ----

unsigned NumCtas(int rows, int rows_per_cta) {
  return static_cast<unsigned>((rows + rows_per_cta - 1) / rows_per_cta);
}

void LaunchSeats(const AppendArguments& arguments, const CacheView& cache, CudaDevice& device) {
  const PlanView& plan = arguments.plan;
  bool moves = false, sinks = false;
  for (size_t i = 0; i < cache.kv_lens.size(); ++i) {
    const int kv_len = cache.kv_lens[i];
    const int first = kv_len - (cache.cu_q_lens[i + 1] - cache.cu_q_lens[i]);
    moves |= plan.own_page && MovesPage(first, kv_len);
    sinks |= NumSinkRows(plan.sinks, first, kv_len) > 0;
  }
  const auto sequences = static_cast<unsigned>(cache.kv_lens.size());
  if (moves) {
    Launch(device, "own pages", MovePages, {{sequences, kCtasPerPage}, kRowThreads}, arguments);
  }
  if (sinks) Launch(device, "sinks", WriteSinks, {sequences, kRowThreads}, arguments);
}

void LaunchKeyNorms(const AppendArguments& arguments, CudaDevice& device) {
  const int rows = arguments.step.num_rows;
  const auto heads = static_cast<unsigned>(arguments.plan.key_norms);
  const unsigned pages = arguments.plan.own_page ? 2 : 1;
  // A token a CTA reads all of k_up for it alone, which pays while they find a multiprocessor each.
  const bool alone = int64_t{rows} * heads * pages <= device.multiprocessors();
  const int tokens = alone ? 1 : kTileTokens;
  Launch(device, "key norms", alone ? WriteKeyNorms<1> : WriteKeyNorms<kTileTokens>,
         {{NumCtas(rows, tokens), heads, pages}, kRowThreads}, arguments);
}

}  // namespace

void CudaAppendCache(CudaDevice& device, StepMemory& step, const AppendCacheParams& p) {
  LATENTD_CHECK(p.plan != nullptr);
  CheckView(p.plan->spec().cache, p.cache);
  LATENTD_CHECK(p.cache.slots.size() == static_cast<size_t>(p.cache.cu_q_lens.back()));
  if (p.cache.slots.empty()) return;
  const AppendArguments arguments = {.plan = static_cast<const CudaAttentionPlan&>(*p.plan).view(),
                                     .step = step.View(p.cache),
                                     .k = p.k,
                                     .v = p.v,
                                     .k_stride = p.k_stride,
                                     .v_stride = p.v_stride,
                                     .sink_k = p.sink_k,
                                     .sink_v = p.sink_v};
  LaunchSeats(arguments, p.cache, device);
  const PlanView& plan = arguments.plan;
  const int pieces = NumPieces(plan.coded) + (plan.own_page ? NumPieces(plan.own) : 0);
  const int longest =
      std::max(LongestPiece(plan.coded), plan.own_page ? LongestPiece(plan.own) : 0);
  Launch(device, "append", EncodeRows,
         {.blocks = {NumCtas(arguments.step.num_rows, kEncodedRows), static_cast<unsigned>(pieces)},
          .threads = kEncodeThreads,
          .shared_bytes = SharedRows::Bytes(longest),
          .early = true},
         arguments);
  if (plan.key_norms > 0) LaunchKeyNorms(arguments, device);
}

}  // namespace latentd
