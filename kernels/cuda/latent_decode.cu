#include "kernels/cuda/latent_decode.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/integer_factors.h"
#include "kernels/cuda/latent_decode_keys.cuh"
#include "kernels/cuda/latent_decode_values.cuh"
#include "kernels/cuda/launch.cuh"

namespace latentd {
namespace {

template <int kHeadDim, int kSteps, int kHalves, int kQueryTiles>
__global__ void __launch_bounds__(kDecodeThreads, 1)
    DecodeLatents(const __grid_constant__ LatentDecodeArguments p) {
#ifdef LATENTD_HOPPER
  uint8_t* memory = SharedMemory();
  if (SharedAddress(memory) % 1024 != 0) __trap();
  const DecodeParts parts(p.plan, p.stages, p.step.num_sequences);
  auto& barriers = *reinterpret_cast<DecodeBarriers*>(memory + parts.barriers);
  auto* prefix = reinterpret_cast<int32_t*>(memory + parts.prefix);
  if (threadIdx.x == 0) {
    for (PhaseBarrier& barrier : barriers.fetched) barrier.Init(1);
    for (PhaseBarrier& barrier : barriers.factors) barrier.Init(1);
    for (PhaseBarrier& barrier : barriers.turned) barrier.Init(kValueThreads);
    for (PhaseBarrier& barrier : barriers.scored) barrier.Init(kGroupThreads);
    FenceBarriers();
  }
  CountPages(p.plan, p.step, prefix);
  const DecodeLine line(p.step.num_sequences, Uniform(prefix[p.step.num_sequences]),
                        p.plan.decode.units, static_cast<int>(gridDim.x));
  Pieces pieces(p.plan, p.step, prefix, line);
  Piece piece;
  const int group = Uniform(static_cast<int>(threadIdx.x) / kGroupThreads);
  int unit = -1, loads = 0;
  if (group < kKeyGroups) {
    TakeRegisters<kKeyRegisters>();
    KeyGroup<kHeadDim, kSteps> keys(p, parts, memory, barriers, group);
    for (; pieces.Next(&piece); unit = piece.unit) {
      if (piece.unit != unit) ++loads;
      keys.Run(piece, loads - 1);
    }
  } else {
    LeaveRegisters<kValueRegisters>();
    ValueGroup<kHeadDim, kHalves, kQueryTiles> values(p, parts, memory, barriers);
    for (; pieces.Next(&piece); unit = piece.unit) {
      values.Run(piece, line, piece.unit != unit);
    }
  }
#endif
}

using Kernel = void (*)(LatentDecodeArguments);
struct KernelChoice {
  Kernel kernel;
  int head_dim, steps, halves, query_tiles;
};
#define LATENTD_KERNELS(head_dim, steps)                           \
  {DecodeLatents<head_dim, steps, 2, 1>, head_dim, steps, 2, 1}, { \
    DecodeLatents<head_dim, steps, 2, 2>, head_dim, steps, 2, 2    \
  }
constexpr KernelChoice kKernels[] = {LATENTD_KERNELS(64, 4), LATENTD_KERNELS(64, 8),
                                     LATENTD_KERNELS(128, 4), LATENTD_KERNELS(128, 8)};
#undef LATENTD_KERNELS

const KernelChoice* ChoiceOf(const PlanView& plan, int queries, int value_blocks) {
  for (const KernelChoice& choice : kKernels) {
    if (choice.head_dim == plan.head_dim && 32 * choice.steps >= plan.coded.k.dims &&
        kValueThreads / 32 * choice.halves >= 2 * value_blocks &&
        choice.query_tiles == QueryTiles(queries)) {
      return &choice;
    }
  }
  return nullptr;
}

bool HasFewBits(const PlaneView& plane) {
  return std::all_of(plane.segments, plane.segments + plane.num_segments,
                     [](const SegmentView& segment) {
                       return segment.codec == Codec::kInt4 || segment.codec == Codec::kInt3 ||
                              segment.codec == Codec::kInt2;
                     });
}

// Stages of fetched pages that fit, of a step with so many sequences.
int StagesOf(const CudaDevice& device, const PlanView& plan, int sequences) {
  for (int stages = kMaxStages; stages > 0; --stages) {
    if (DecodeParts(plan, stages, sequences).bytes <= device.shared_bytes()) return stages;
  }
  return 0;
}

constexpr int kLeastStages = 2;

}  // namespace

DecodeUnits LatentDecodeUnits(const CudaDevice& device, const AttentionSpec& spec,
                              const PlanView& plan) {
  if (device.compute_capability() != 90 || plan.path != AttentionPath::kReconstruct ||
      !HasFewBits(plan.coded.k) || !HasFewBits(plan.coded.v) ||
      plan.coded.k.latent_heads != plan.coded.v.latent_heads || plan.k_bias != nullptr ||
      plan.coded.k.dims > 32 * kMaxSteps || spec.rope->max_positions < kBlockTokens) {
    return {};
  }
  const int per_kv = plan.num_heads / plan.num_kv_heads;
  const int value_blocks = ValueBlocks(plan.coded.v, 0, nullptr);
  if (per_kv > 8 || value_blocks > kMaxValueBlocks) return {};
  const int in_latent_head = plan.num_kv_heads / plan.coded.k.latent_heads;
  for (int heads = in_latent_head; heads > 0; --heads) {
    const int passes = (heads * plan.head_dim + kFactorColumns - 1) / kFactorColumns;
    if (in_latent_head % heads != 0 || passes > kMaxPasses) continue;
    PlanView view = plan;
    view.decode = {
        .kernel = DecodeKernel::kLatents, .heads = heads, .units = plan.num_kv_heads / heads};
    view.k_int8.unit_bytes = IntegerFactorBytes(plan.head_dim, plan.coded.k.dims, heads);
    if (ChoiceOf(view, heads * per_kv, value_blocks) != nullptr &&
        StagesOf(device, view, kMostDecodeSequences) >= kLeastStages) {
      return view.decode;
    }
  }
  return {};
}

int LatentDecodeBlocks(const CudaDevice& device) { return device.multiprocessors(); }

void LaunchLatentDecode(CudaDevice& device, const PlanView& plan, const StepView& step,
                        const float* q, float* partials) {
  LatentDecodeArguments arguments{.plan = plan,
                                  .step = step,
                                  .q = q,
                                  .partials = partials,
                                  .stages = StagesOf(device, plan, step.num_sequences)};
  arguments.num_key_tiles = KeyTiles(plan.coded.k, 2 * kMaxSteps, arguments.key_tiles);
  arguments.num_value_blocks = ValueBlocks(plan.coded.v, kMaxValueBlocks, arguments.value_blocks);
  const DecodeParts parts(plan, arguments.stages, step.num_sequences);
  const KernelChoice* choice = ChoiceOf(plan, parts.queries, arguments.num_value_blocks);
  LATENTD_CHECK(choice != nullptr && arguments.stages >= kLeastStages);
  Launch(device, "decode attention", choice->kernel,
         {LatentDecodeBlocks(device), kDecodeThreads, parts.bytes}, arguments);
}

}  // namespace latentd
