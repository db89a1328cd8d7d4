#pragma once

#include <array>

#include "absl/types/span.h"
#include "kernels/cuda/latent_decode_keys.cuh"
#include "kernels/cuda/latent_decode_values.cuh"
#include "kernels/cuda/launch.cuh"

namespace latentd {

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

struct LatentKernel {
  void (*kernel)(LatentDecodeArguments);
  FactorKind factors;
  int head_dim, k_dims;
  ValueCodes codes;
  int query_tiles;
};

// Halves of blocks of values that a warp has.
constexpr int HalvesOf(ValueCodes codes) { return codes == ValueCodes::kFewBits ? 2 : 3; }
constexpr int MostValueBlocks(ValueCodes codes) { return kValueThreads / 32 * HalvesOf(codes) / 2; }
static_assert(MostValueBlocks(ValueCodes::kAll) == kMaxValueBlocks);

// Of heads of 64 and 128 dims, with up to 8 and 16 queries.
using LatentKernelSet = std::array<LatentKernel, 4>;
template <FactorKind kKind, int kDims, ValueCodes kCodes>
constexpr LatentKernelSet LatentKernels() {
  constexpr int kHalves = HalvesOf(kCodes);
  return {{{DecodeLatents<kKind, 64, kDims, kCodes, kHalves, 1>, kKind, 64, kDims, kCodes, 1},
           {DecodeLatents<kKind, 64, kDims, kCodes, kHalves, 2>, kKind, 64, kDims, kCodes, 2},
           {DecodeLatents<kKind, 128, kDims, kCodes, kHalves, 1>, kKind, 128, kDims, kCodes, 1},
           {DecodeLatents<kKind, 128, kDims, kCodes, kHalves, 2>, kKind, 128, kDims, kCodes, 2}}};
}

// All there are; of those that serve a plan the first one is the fastest.
absl::Span<const LatentKernelSet> Int8LatentKernels();
absl::Span<const LatentKernelSet> Fp16LatentKernels();

}  // namespace latentd
