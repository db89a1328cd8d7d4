// A block walks over the pages of its pieces, several of which are on their way to shared memory at
// a time. Its four warps make scores, each of 16 tokens: keys, decoded in registers, times queries.
// Then softmax and values (decode_sums.cuh).

#include "kernels/cuda/direct_decode.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/decode_sums.cuh"
#include "kernels/cuda/decode_work.cuh"
#include "kernels/cuda/key_loader.cuh"
#include "kernels/cuda/launch.cuh"

namespace latentd {
namespace {

constexpr int kBlockThreads = 128;
constexpr int kMaxKeyTiles = 32;  // dims of a latent head: 512
constexpr int kMaxStages = 6;
constexpr int kLeastStages = 3;

struct DirectDecodeArguments {
  PlanView plan;
  StepView step;
  const float* q = nullptr;
  float* partials = nullptr;  // [places][queries of a unit][2 + v dims]
  int stages = 0;
  int num_value_blocks = 0;
  ValueBlock value_blocks[kMaxValueBlocks];
};

// Of a query as it meets the cache.
__host__ __device__ inline int QueryDims(const PlanView& plan) {
  return plan.path == AttentionPath::kAbsorbed ? plan.coded.k.dims : plan.head_dim;
}

// The parts of a block's shared memory, in bytes.
struct DirectParts {
  __host__ __device__ DirectParts(const PlanView& plan, int stages, int sequences) {
    kv_heads_of_latent = plan.num_kv_heads / plan.coded.k.latent_heads;
    queries = plan.decode.heads * (plan.num_heads / plan.num_kv_heads);
    query_tiles = QueryTiles(queries);
    k_bytes = plan.coded.k.head_bytes;
    stage_bytes = k_bytes + plan.coded.v.head_bytes;
    int at = 0;
    const auto take = [&at](int bytes) {
      const int begin = at;
      at += (bytes + 127) / 128 * 128;
      return begin;
    };
    stage = take(max(stages * stage_bytes, PieceBytes(plan)));
    query = take(plan.coded.k.dims / kTileDims * query_tiles * 32 * 8);
    scores = take(queries * kScoreStride * 4);
    sums = take(SumsParts(kBlockThreads / 32, query_tiles, plan.coded.v.num_segments).bytes);
    prefix = take(4 * (sequences + 1));
    bytes = at;
  }
  int kv_heads_of_latent, queries, query_tiles;
  int k_bytes, stage_bytes;
  int stage, query, scores, sums, prefix;
  int bytes;
};

// Copies a plane's latent head. Tiles of halves lie with their 16-byte parts exchanged, against
// bank conflicts: of K part c of dim d at c ^ (d % 8), of V as LoadValues says.
template <TileOrder kOrder>
__device__ inline void FetchPlane(const PlaneView& plane, const uint8_t* from, uint8_t* to) {
  const bool halves = plane.segments[0].codec == Codec::kF16;
  // A thread's parts are all exchanged alike: a multiple of 64 parts lies between them.
  const int part = threadIdx.x, mask = kOrder == TileOrder::kDimMajor ? 7 : 1;
  const int exchanged = halves ? part ^ (part >> 3 & mask) : part;
  uint32_t at = SharedAddress(to + 16 * exchanged);
  from += 16 * part;
#pragma unroll 8
  for (int left = plane.head_bytes / 16 - part; left > 0; left -= kBlockThreads) {
    BeginCopy(at, from);
    at += 16 * kBlockThreads;
    from += 16 * kBlockThreads;
  }
}
// Waits for all groups of the thread's but the newest `count`.
__device__ inline void WaitForFetches(int count) {
  switch (count) {
    case 0:
      return WaitForCopies<0>();
    case 1:
      return WaitForCopies<1>();
    case 2:
      return WaitForCopies<2>();
    case 3:
      return WaitForCopies<3>();
    default:
      return WaitForCopies<4>();
  }
}

template <int kQueryTiles>
struct DirectBlock {
  const DirectDecodeArguments& p;
  const DirectParts& parts;
  uint8_t* memory;

  __device__ __forceinline__ void Fetch(const Piece& piece, int j, int stage) const {
    if (j < piece.count) {
      const PlanView& plan = p.plan;
      const int block = p.step.block_table[piece.sequence * p.step.max_blocks + piece.page + j];
      const int head = piece.unit * plan.decode.heads / parts.kv_heads_of_latent;
      const uint8_t* page = p.step.layer + plan.coded.bytes * block;
      uint8_t* to = memory + parts.stage + stage * parts.stage_bytes;
      FetchPlane<TileOrder::kDimMajor>(plan.coded.k, page + int64_t{head} * parts.k_bytes, to);
      const uint8_t* values = page + plan.coded.v_offset + int64_t{head} * plan.coded.v.head_bytes;
      FetchPlane<TileOrder::kTokenMajor>(plan.coded.v, values, to + parts.k_bytes);
    }
    EndCopies();
  }

  // In the order of B: [16 dims][tile of queries][lane] of two times two dims.
  __device__ __forceinline__ void LoadQueries(const Piece& piece) const {
    const PlanView& plan = p.plan;
    const int dims = QueryDims(plan), tiles = plan.coded.k.dims / kTileDims;
    const float scale = plan.softmax_scale * kLog2E;
    const int row =
        plan.path == AttentionPath::kAbsorbed ? piece.sequence : p.step.cu_q_lens[piece.sequence];
    const float* rows = p.q + (int64_t{row} * plan.num_heads + piece.unit * parts.queries) * dims;
    for (int i = threadIdx.x; i < tiles * kQueryTiles * 32; i += kBlockThreads) {
      const int lane = i % 32, query = i / 32 % kQueryTiles * 8 + lane / 4;
      const int dim = i / (32 * kQueryTiles) * kTileDims + lane % 4 * 2;
      float x[4];
      for (int e = 0; e < 4; ++e) {
        const int d = dim + e % 2 + e / 2 * 8;
        x[e] = query < parts.queries && d < dims ? rows[query * dims + d] * scale : 0.0f;
      }
      reinterpret_cast<uint2*>(memory + parts.query)[i] = {TwoHalves(x[0], x[1]),
                                                           TwoHalves(x[2], x[3])};
    }
  }

  // Of one segment, before its scales.
  template <int kBits>
  __device__ __forceinline__ void Products(const KeyLoader& keys, const SegmentView& segment,
                                           FragmentD (&sums)[kQueryTiles]) const {
    const auto* queries = reinterpret_cast<const uint2*>(memory + parts.query) +
                          segment.first_dim / kTileDims * kQueryTiles * 32 + keys.lane;
    const uint8_t* tile = keys.codes + segment.offset;
    const int tiles = segment.dims / kTileDims;
#pragma unroll 4
    for (int t = 0; t < tiles; ++t) {
      const FragmentA a = keys.Load<kBits>(tile + t * (kTileDims * kBlockTokens * kBits / 8));
#pragma unroll
      for (int n = 0; n < kQueryTiles; ++n) {
        const uint2 b = queries[(t * kQueryTiles + n) * 32];
        MultiplyAdd(a, {{b.x, b.y}}, sums[n]);
      }
    }
  }

  __device__ __forceinline__ void Scores(const uint8_t* codes) const {
    const KeyLoader keys{.codes = codes,
                         .warp = static_cast<int>(threadIdx.x) / 32,
                         .lane = static_cast<int>(threadIdx.x) % 32};
    const PlaneView& plane = p.plan.coded.k;
    const bool halves = plane.segments[0].codec == Codec::kF16;
    FragmentD all[kQueryTiles];
    for (int s = 0; s < plane.num_segments; ++s) {
      const SegmentView& segment = plane.segments[s];
      FragmentD sums[kQueryTiles];
      switch (BitsOf(segment.codec)) {
        case 16:
          Products<16>(keys, segment, sums);
          break;
        case 8:
          Products<8>(keys, segment, sums);
          break;
        case 4:
          Products<4>(keys, segment, sums);
          break;
        case 3:
          Products<3>(keys, segment, sums);
          break;
        default:
          Products<2>(keys, segment, sums);
      }
      float2 scale = {1.0f, 1.0f};
      if (!halves) {
        scale = __half22float2(
            *reinterpret_cast<const __half2*>(codes + segment.scale_offset + 2 * keys.token()));
      }
#pragma unroll
      for (int n = 0; n < kQueryTiles; ++n) {
        all[n].x[0] += sums[n].x[0] * scale.x;
        all[n].x[1] += sums[n].x[1] * scale.x;
        all[n].x[2] += sums[n].x[2] * scale.y;
        all[n].x[3] += sums[n].x[3] * scale.y;
      }
    }
    const int row = halves ? 16 * keys.warp + keys.lane / 4 : keys.token();
    const int next = row + (halves ? 8 : 1);
#pragma unroll
    for (int n = 0; n < kQueryTiles; ++n) {
      for (int e = 0; e < 2; ++e) {
        const int query = 8 * n + keys.lane % 4 * 2 + e;
        if (query >= parts.queries) continue;
        float* scores = reinterpret_cast<float*>(memory + parts.scores) + query * kScoreStride;
        scores[row] = all[n].x[e];
        scores[next] = all[n].x[2 + e];
      }
    }
  }
};

// Blocks of so many registers that share a multiprocessor.
constexpr int MostBlocks(int query_tiles) {
  return query_tiles == 1 ? 4 : query_tiles == 2 ? 3 : 2;
}

template <int kHalves, int kQueryTiles>
__global__ void __launch_bounds__(kBlockThreads, MostBlocks(kQueryTiles))
    DecodeDirectly(const __grid_constant__ DirectDecodeArguments p) {
  uint8_t* memory = SharedMemory();
  const DirectParts parts(p.plan, p.stages, p.step.num_sequences);
  auto* prefix = reinterpret_cast<int32_t*>(memory + parts.prefix);
  CountPages(p.plan, p.step, prefix);
  const DecodeLine line(p.step.num_sequences, Uniform(prefix[p.step.num_sequences]),
                        p.plan.decode.units, static_cast<int>(gridDim.x), /*late=*/0);
  Pieces pieces(p.plan, p.step, prefix, line);
  const DirectBlock<kQueryTiles> block{p, parts, memory};
  DecodeSums<kBlockThreads / 32, kHalves, kQueryTiles, ValueCodes::kAllExchanged> sums(
      p.plan.coded.v, p.value_blocks, p.num_value_blocks, parts.queries, memory + parts.sums);
  const auto* scores = reinterpret_cast<const float*>(memory + parts.scores);
  Piece piece;
  while (pieces.Next(&piece)) {
    for (int j = 0; j < p.stages - 1; ++j) block.Fetch(piece, j, j);
    block.LoadQueries(piece);
    sums.Begin();
    const float* slopes = p.plan.alibi_slopes;
    if (slopes != nullptr) slopes += piece.unit * parts.queries;
    int stage = 0, next_stage = p.stages - 1;
    for (int j = 0; j < piece.count; ++j) {
      WaitForFetches(p.stages - 2);
      __syncthreads();  // page j is there, and page j - 1 was read
      block.Fetch(piece, j + p.stages - 1, next_stage);
      const uint8_t* codes = memory + parts.stage + stage * parts.stage_bytes;
      const uint8_t* values = codes + parts.k_bytes;
      const int start = (piece.page + j) * kBlockTokens, last = piece.position - start;
      const int first = FirstVisible(p.plan, piece.position) - start;
      sums.BeginPage(first, last, values);
      block.Scores(codes);
      __syncthreads();
      sums.Softmax(
          last, scores, [](int) { return 1.0f; },
          [slopes](int query) { return slopes == nullptr ? 0.0f : slopes[query] * kLog2E; });
      __syncthreads();
      sums.Add(values, first, last);
      next_stage = stage;
      if (++stage == p.stages) stage = 0;
    }
    const int64_t place = line.Place(static_cast<int>(blockIdx.x), piece.unit, piece.sequence);
    __syncthreads();  // the last page was read
    sums.Write(reinterpret_cast<float*>(memory + parts.stage),
               p.partials + place * parts.queries * (2 + p.plan.coded.v.dims));
    __syncthreads();  // before the next piece's pages and queries
  }
}

using Kernel = void (*)(DirectDecodeArguments);
struct KernelChoice {
  Kernel kernel;
  int halves, query_tiles;
};
constexpr KernelChoice kKernels[] = {
    {DecodeDirectly<1, 1>, 1, 1}, {DecodeDirectly<2, 1>, 2, 1}, {DecodeDirectly<4, 1>, 4, 1},
    {DecodeDirectly<1, 2>, 1, 2}, {DecodeDirectly<2, 2>, 2, 2}, {DecodeDirectly<4, 2>, 4, 2},
    {DecodeDirectly<2, 4>, 2, 4},
};

const KernelChoice* ChoiceOf(int queries, int value_blocks) {
  for (const KernelChoice& choice : kKernels) {
    if (kBlockThreads / 32 * choice.halves >= 2 * value_blocks &&
        choice.query_tiles == QueryTiles(queries)) {
      return &choice;
    }
  }
  return nullptr;
}

// Halves, where they are the plane's only segment, and symmetric grids.
bool Serves(const PlaneView& plane) {
  if (plane.num_segments == 1 && plane.segments[0].codec == Codec::kF16) return true;
  return std::all_of(plane.segments, plane.segments + plane.num_segments,
                     [](const SegmentView& segment) {
                       return IsScaled(segment.codec) && !IsMinMax(segment.codec);
                     });
}

// How many blocks share a multiprocessor, and the stages that each has, for a step of any size.
struct Occupancy {
  int blocks = 0, stages = 0;
};
Occupancy OccupancyOf(const CudaDevice& device, const PlanView& plan) {
  constexpr int kReserved = 1024;  // of a block's shared memory, by the system
  const int queries = plan.decode.heads * (plan.num_heads / plan.num_kv_heads);
  for (int blocks = MostBlocks(QueryTiles(queries)); blocks > 0; --blocks) {
    const int bytes = blocks == 1 ? device.shared_bytes()
                                  : (device.shared_bytes() + kReserved) / blocks - kReserved;
    for (int stages = kMaxStages; stages >= kLeastStages; --stages) {
      if (DirectParts(plan, stages, kMostDecodeSequences).bytes <= bytes) return {blocks, stages};
    }
  }
  return {};
}

}  // namespace

DecodeUnits DirectDecodeUnits(const CudaDevice& device, const PlanView& plan) {
  if (plan.path == AttentionPath::kReconstruct || !Serves(plan.coded.k) || !Serves(plan.coded.v) ||
      plan.coded.k.latent_heads != plan.coded.v.latent_heads ||
      plan.coded.k.dims > kMaxKeyTiles * kTileDims) {
    return {};
  }
  const int in_latent_head = plan.num_kv_heads / plan.coded.k.latent_heads;
  const int per_kv = plan.num_heads / plan.num_kv_heads;
  const int value_blocks = ValueBlocks(plan.coded.v, 0, nullptr);
  for (int heads = in_latent_head; heads > 0; --heads) {
    if (in_latent_head % heads != 0 || heads * per_kv > 32) continue;
    PlanView view = plan;
    view.decode = {
        .kernel = DecodeKernel::kDirect, .heads = heads, .units = plan.num_kv_heads / heads};
    if (ChoiceOf(heads * per_kv, value_blocks) != nullptr && OccupancyOf(device, view).blocks > 0) {
      return view.decode;
    }
  }
  return {};
}

int DirectDecodeBlocks(const CudaDevice& device, const PlanView& plan) {
  return device.multiprocessors() * OccupancyOf(device, plan).blocks;
}

void LaunchDirectDecode(CudaDevice& device, const PlanView& plan, const StepView& step,
                        const float* q, float* partials) {
  DirectDecodeArguments arguments{.plan = plan,
                                  .step = step,
                                  .q = q,
                                  .partials = partials,
                                  .stages = OccupancyOf(device, plan).stages};
  arguments.num_value_blocks = ValueBlocks(plan.coded.v, kMaxValueBlocks, arguments.value_blocks);
  const DirectParts parts(plan, arguments.stages, step.num_sequences);
  const KernelChoice* choice = ChoiceOf(parts.queries, arguments.num_value_blocks);
  LATENTD_CHECK(choice != nullptr);
  Launch(device, "decode attention", choice->kernel,
         {DirectDecodeBlocks(device, plan), kBlockThreads, parts.bytes}, arguments);
}

}  // namespace latentd
