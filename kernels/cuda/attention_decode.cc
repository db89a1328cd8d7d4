#include <cstdint>
#include <string>

#include "kernels/cuda/absorb_queries.h"
#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_merge.h"
#include "kernels/cuda/attention_plan.h"
#include "kernels/cuda/direct_decode.h"
#include "kernels/cuda/latent_decode.h"

namespace latentd {

void CudaAttention::Decode(const CudaAttentionPlan& cuda_plan, const StepView& step, const float* q,
                           float* out) {
  const PlanView &plan = cuda_plan.view(), &own_plan = cuda_plan.own_view();
  const bool latents = plan.decode.kernel == DecodeKernel::kLatents;
  const bool absorbed = plan.path == AttentionPath::kAbsorbed;
  const int blocks = latents ? LatentDecodeBlocks(device_, plan, step.num_sequences)
                             : DirectDecodeBlocks(device_, plan);
  const bool own_latents = own_plan.decode.kernel == DecodeKernel::kLatents;
  const int own_blocks =
      own_latents ? LatentDecodeBlocks(device_, own_plan, step.num_sequences) : 0;
  const int64_t partial = 2 + plan.coded.v.dims, sequences = step.num_sequences;
  const int64_t coded = DecodeFloats(plan, sequences, blocks);
  const int64_t own = plan.own_page ? sequences * plan.num_heads * partial : 0;
  const int64_t queries = absorbed ? sequences * plan.num_heads * plan.coded.k.dims : 0;
  const absl::Status memory = partials_.Reserve(device_, coded + own + queries);
  if (!memory.ok()) return device_.Fail(std::string(memory.message()));
  float *own_partials = partials_.data() + coded, *absorbed_q = own_partials + own;

  const auto attend_coded = [&] {
    if (latents) return LaunchLatentDecode(device_, plan, step, q, partials_.data(), own_blocks);
    if (absorbed) AbsorbQueries(device_, plan, step, q, absorbed_q);
    LaunchDirectDecode(device_, plan, step, absorbed ? absorbed_q : q, partials_.data());
  };
  // Side by side: own pages are few, coded ones do not fill all multiprocessors to their end.
  const bool forks = plan.own_page && !own_latents;
  if (forks) {
    device_.Fork(attend_coded);
    AttendOwnPages(plan, step, q, own_partials);
    device_.Join();
  } else {
    if (own_latents) LaunchLatentDecode(device_, own_plan, step, q, own_partials, 0);
    attend_coded();
  }
  CudaMergeDecoded(device_,
                   {.plan = plan,
                    .step = step,
                    .q = q,
                    .out = out,
                    .partials = partials_.data(),
                    .own_partials = own_partials,
                    .blocks = blocks,
                    .late_blocks = own_blocks},
                   /*early=*/!forks);
}

}  // namespace latentd
