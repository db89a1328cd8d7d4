#include "kernels/cuda/latent_decode.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cuda/key_factors.h"
#include "kernels/cuda/latent_decode_kernel.cuh"
#include "kernels/cuda/launch.cuh"

namespace latentd {
namespace {

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

// Null where none serves the plan.
const LatentKernel* KernelOf(const PlanView& plan, int queries) {
  const bool int8 = plan.decode.factors == FactorKind::kInt8;
  for (const LatentKernelSet& set : int8 ? Int8LatentKernels() : Fp16LatentKernels()) {
    for (const LatentKernel& kernel : set) {
      if (kernel.head_dim == plan.head_dim && kernel.k_dims >= plan.coded.k.dims &&
          kernel.codes == ValuesOf(plan) && kernel.query_tiles == QueryTiles(queries)) {
        return &kernel;
      }
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
    if (KernelOf(view, heads * per_kv) != nullptr &&
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
  arguments.num_key_tiles = KeyTiles(plan.coded.k, kMaxKeyDims / kTileDims, arguments.key_tiles);
  arguments.num_value_blocks = ValueBlocks(plan.coded.v, kMaxValueBlocks, arguments.value_blocks);
  const DecodeParts& parts = arguments.parts;
  const LatentKernel* kernel = KernelOf(plan, parts.queries);
  LATENTD_CHECK(kernel != nullptr);
  // Early it needs nothing of the kernel before, for own pages, which began after all others' end.
  Launch(device, "decode attention", kernel->kernel,
         {.blocks = LatentDecodeBlocks(device, plan, step.num_sequences),
          .threads = kDecodeThreads,
          .shared_bytes = parts.bytes,
          .early = own_blocks > 0},
         arguments);
}

}  // namespace latentd
