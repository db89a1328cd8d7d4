#include "engine/batch.h"

#include "base/check.h"
#include "kernels/cache_layout.h"

namespace latentd {

int AppendRows(Batch* batch, absl::Span<const int32_t> tokens, int begin, int end,
               absl::Span<const int32_t> blocks, int32_t seat) {
  LATENTD_CHECK(0 <= begin && begin < end && end <= static_cast<int>(tokens.size()));
  LATENTD_CHECK(static_cast<int64_t>(blocks.size()) <= batch->max_blocks);
  LATENTD_CHECK(static_cast<int64_t>(blocks.size()) * kBlockTokens >= end);
  for (int i = begin; i < end; ++i) {
    batch->token_ids.push_back(tokens[i]);
    batch->positions.push_back(i);
    batch->slots.push_back(int64_t{blocks[i / kBlockTokens]} * kBlockTokens + i % kBlockTokens);
  }
  if (batch->cu_q_lens.empty()) batch->cu_q_lens.push_back(0);
  batch->cu_q_lens.push_back(batch->num_tokens());
  batch->kv_lens.push_back(end);
  batch->seats.push_back(seat);
  batch->block_table.insert(batch->block_table.end(), blocks.begin(), blocks.end());
  batch->block_table.resize(batch->kv_lens.size() * batch->max_blocks, -1);
  return batch->num_tokens() - 1;
}

}  // namespace latentd
