#include "kernels/cuda/latent_decode.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/key_factors.h"
#include "kernels/cuda/latent_decode_keys.cuh"
#include "kernels/cuda/latent_decode_values.cuh"
#include "kernels/cuda/launch.cuh"

namespace latentd {
namespace {

template <FactorKind kKind, int kHeadDim, int kDims, ValueCodes kCodes, int kHalves,
          int kQueryTiles>
__global__ void __launch_bounds__(kDecodeThreads, 1)
    DecodeLatents(const __grid_constant__ LatentDecodeArguments p) {
#ifdef LATENTD_HOPPER
  LetNextKernelBegin();  // of coded pages beside own ones, then the merge
  uint8_t* memory = SharedMemory();
  if (SharedAddress(memory) % 1024 != 0) __trap();
  const DecodeParts& parts = p.parts;
  auto& barriers = *reinterpret_cast<DecodeBarriers*>(memory + parts.barriers);
  auto* prefix = reinterpret_cast<int32_t*>(memory + parts.prefix);
  if (threadIdx.x == 0) {
    for (PhaseBarrier& barrier : barriers.fetched) barrier.Init(1);
    for (PhaseBarrier& barrier : barriers.factors) barrier.Init(1);
    for (PhaseBarrier& barrier : barriers.turned) barrier.Init(kValueThreads);
    for (PhaseBarrier& barrier : barriers.scored) barrier.Init(kKeyGroups * kGroupThreads);
    FenceBarriers();
  }
  CountPages(p.plan, p.step, prefix);
  const DecodeLine line(p.step.num_sequences, Uniform(prefix[p.step.num_sequences]),
                        p.plan.decode.units, static_cast<int>(gridDim.x), p.late_blocks);
  if (line.Begin(static_cast<int>(blockIdx.x)) >= p.plan.decode.units * line.pages) {
    return WaitForKernelsBefore();
  }
  Pieces pieces(p.plan, p.step, prefix, line);
  Piece piece;
  const int group = Uniform(static_cast<int>(threadIdx.x) / kGroupThreads);
  int unit = -1, loads = 0;
  if (group < kKeyGroups) {
    TakeRegisters<kKeyRegisters<kKind, kCodes>>();
    KeyGroup<kKind, kHeadDim, kDims> keys(p, memory, barriers, group, line.share == 1);
    for (; pieces.Next(&piece); unit = piece.unit) {
      if (piece.unit != unit) ++loads;
      keys.Run(piece, loads - 1);
    }
  } else {
    LeaveRegisters<256 - kKeyRegisters<kKind, kCodes>>();
    ValueGroup<kKind, kHeadDim, kCodes, kHalves, kQueryTiles> values(p, memory, barriers);
    for (; pieces.Next(&piece); unit = piece.unit) {
      values.Run(piece, line, piece.unit != unit);
    }
  }
  // Own pages' end, too, if they came before: so the merge that waits for this kernel has both.
  WaitForKernelsBefore();
#endif
}

using Kernel = void (*)(LatentDecodeArguments);
struct KernelChoice {
  Kernel kernel;
  FactorKind factors;
  int head_dim, k_dims;
  ValueCodes codes;
  int query_tiles;
};
// Halves of blocks of values that a warp has.
constexpr int HalvesOf(ValueCodes codes) { return codes == ValueCodes::kFewBits ? 2 : 3; }
constexpr int MostValueBlocks(ValueCodes codes) { return kValueThreads / 32 * HalvesOf(codes) / 2; }
static_assert(MostValueBlocks(ValueCodes::kAll) == kMaxValueBlocks);
#define LATENTD_KERNEL(factors, head_dim, k_dims, codes, query_tiles)                       \
  {                                                                                         \
    DecodeLatents<factors, head_dim, k_dims, codes, HalvesOf(codes), query_tiles>, factors, \
        head_dim, k_dims, codes, query_tiles                                                \
  }
#define LATENTD_KERNELS(factors, k_dims, codes)                                                 \
  LATENTD_KERNEL(factors, 64, k_dims, codes, 1), LATENTD_KERNEL(factors, 64, k_dims, codes, 2), \
      LATENTD_KERNEL(factors, 128, k_dims, codes, 1),                                           \
      LATENTD_KERNEL(factors, 128, k_dims, codes, 2)
// Of those that serve a plan the first one is taken.
constexpr KernelChoice kKernels[] = {
    LATENTD_KERNELS(FactorKind::kInt8, 128, ValueCodes::kFewBits),
    LATENTD_KERNELS(FactorKind::kInt8, 256, ValueCodes::kFewBits),
    LATENTD_KERNELS(FactorKind::kInt8, 512, ValueCodes::kFewBits),
    LATENTD_KERNELS(FactorKind::kInt8, 256, ValueCodes::kUpTo8Bits),
    LATENTD_KERNELS(FactorKind::kInt8, 512, ValueCodes::kUpTo8Bits),
    LATENTD_KERNELS(FactorKind::kFp16, 128, ValueCodes::kAll),
    LATENTD_KERNELS(FactorKind::kFp16, 256, ValueCodes::kAll)};
#undef LATENTD_KERNELS
#undef LATENTD_KERNEL

bool IsSymmetric(const SegmentView& segment) {
  return IsScaled(segment.codec) && !IsMinMax(segment.codec);
}
bool IsOfFewBits(const SegmentView& segment) {
  return IsSymmetric(segment) && BitsOf(segment.codec) <= 4;
}
// Whether each product of 32 dims is of one segment.
bool HasWholeSteps(const PlaneView& plane) {
  return std::all_of(plane.segments, plane.segments + plane.num_segments,
                     [](const SegmentView& segment) { return segment.first_dim % 32 == 0; });
}
bool IsKey(const SegmentView& segment) { return segment.codec != Codec::kF32; }
bool IsValue(const SegmentView& segment) {
  return IsSymmetric(segment) || segment.codec == Codec::kF16;
}
bool AllAre(bool (*is)(const SegmentView&), const PlaneView& plane) {
  return std::all_of(plane.segments, plane.segments + plane.num_segments, is);
}

// The least that serve the plan.
ValueCodes ValuesOf(const PlanView& plan) {
  if (plan.decode.factors == FactorKind::kFp16) return ValueCodes::kAll;
  const bool few = AllAre(IsOfFewBits, plan.coded.v) &&
                   ValueBlocks(plan.coded.v, 0, nullptr) <= MostValueBlocks(ValueCodes::kFewBits);
  return few ? ValueCodes::kFewBits : ValueCodes::kUpTo8Bits;
}

const KernelChoice* ChoiceOf(const PlanView& plan, int queries) {
  for (const KernelChoice& choice : kKernels) {
    if (choice.factors == plan.decode.factors && choice.head_dim == plan.head_dim &&
        choice.k_dims >= plan.coded.k.dims && choice.codes == ValuesOf(plan) &&
        choice.query_tiles == QueryTiles(queries)) {
      return &choice;
    }
  }
  return nullptr;
}

// Stages of fetched pages that fit, of a step with so many sequences; 0 where too few do. Each own
// page is a piece of its own, which needs one.
int StagesOf(const CudaDevice& device, const PlanView& plan, int sequences) {
  const int least = ReadsOwnPages(plan) ? 1 : 2, most = ReadsOwnPages(plan) ? 1 : kMaxStages;
  for (int stages = most; stages >= least; --stages) {
    if (DecodeParts(plan, stages, sequences).bytes <= device.shared_bytes()) return stages;
  }
  return 0;
}

}  // namespace

DecodeUnits LatentDecodeUnits(const CudaDevice& device, const AttentionSpec& spec,
                              const PlanView& plan) {
  const PlaneView &k = plan.coded.k, &v = plan.coded.v;
  if (device.compute_capability() != 90 || plan.path != AttentionPath::kReconstruct ||
      !AllAre(IsKey, k) || !AllAre(IsValue, v) || k.latent_heads != v.latent_heads ||
      spec.rope->max_positions < kBlockTokens) {
    return {};
  }
  // int8 has no room for a bias.
  const bool int8 = HasWholeSteps(k) && AllAre(IsOfFewBits, k) && AllAre(IsSymmetric, v) &&
                    spec.k_bias == nullptr;
  const FactorKind factors = int8 ? FactorKind::kInt8 : FactorKind::kFp16;
  const int per_kv = plan.num_heads / plan.num_kv_heads;
  if (per_kv > 8 || ValueBlocks(v, 0, nullptr) > kMaxValueBlocks) return {};
  const int in_latent_head = plan.num_kv_heads / k.latent_heads;
  for (int heads = in_latent_head; heads > 0; --heads) {
    const int passes = (heads * plan.head_dim + kFactorColumns - 1) / kFactorColumns;
    if (in_latent_head % heads != 0 || passes > kMaxPasses) continue;
    PlanView view = plan;
    view.decode = {.kernel = DecodeKernel::kLatents,
                   .pages = plan.decode.pages,
                   .factors = factors,
                   .heads = heads,
                   .units = plan.num_kv_heads / heads};
    view.key_factors.unit_bytes = KeyFactorBytes(spec, factors, heads);
    if (ChoiceOf(view, heads * per_kv) != nullptr &&
        StagesOf(device, view, kMostDecodeSequences) > 0) {
      return view.decode;
    }
  }
  return {};
}

int LatentDecodeBlocks(const CudaDevice& device, const PlanView& plan, int sequences) {
  const int blocks = device.multiprocessors();
  return ReadsOwnPages(plan) ? std::min(blocks, plan.decode.units * sequences) : blocks;
}

void LaunchLatentDecode(CudaDevice& device, const PlanView& plan, const StepView& step,
                        const float* q, float* partials, int own_blocks) {
  const int stages = StagesOf(device, plan, step.num_sequences);
  LATENTD_CHECK(stages > 0);
  LatentDecodeArguments arguments{.plan = plan,
                                  .step = step,
                                  .q = q,
                                  .partials = partials,
                                  .stages = stages,
                                  .late_blocks = own_blocks,
                                  .parts = DecodeParts(plan, stages, step.num_sequences)};
  arguments.num_key_tiles = KeyTiles(plan.coded.k, kDimsAtOnce / kTileDims, arguments.key_tiles);
  arguments.num_value_blocks = ValueBlocks(plan.coded.v, kMaxValueBlocks, arguments.value_blocks);
  const DecodeParts& parts = arguments.parts;
  const KernelChoice* choice = ChoiceOf(plan, parts.queries);
  LATENTD_CHECK(choice != nullptr);
  // Early it needs nothing of the kernel before, for own pages, which began after all others' end.
  Launch(device, "decode attention", choice->kernel,
         {.blocks = LatentDecodeBlocks(device, plan, step.num_sequences),
          .threads = kDecodeThreads,
          .shared_bytes = parts.bytes,
          .early = own_blocks > 0},
         arguments);
}

}  // namespace latentd
