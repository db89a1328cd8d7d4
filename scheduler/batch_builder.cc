#include "scheduler/batch_builder.h"

#include <algorithm>

namespace latentd {
namespace {

bool NeedsTokens(const SamplingParams& params) {
  return params.repetition_penalty != 1.0f || params.presence_penalty != 0.0f ||
         params.frequency_penalty != 0.0f;
}

BatchSample SampleOf(const Sequence& sequence, int row) {
  const Request& request = *sequence.request;
  BatchSample sample{.row = row,
                     .params = request.sampling,
                     .num_prompt_tokens = sequence.num_prompt_tokens(),
                     .position = sequence.num_tokens()};
  if (NeedsTokens(request.sampling)) sample.tokens = sequence.tokens;
  if (sequence.num_generated() < request.min_new_tokens) sample.banned = request.stop_token_ids;
  return sample;
}

}  // namespace

Batch BuildBatch(const StepPlan& plan) {
  Batch batch;
  for (const StepEntry& entry : plan) {
    batch.max_blocks =
        std::max(batch.max_blocks, static_cast<int64_t>(entry.sequence->blocks.size()));
  }
  for (const StepEntry& entry : plan) {
    const Sequence& sequence = *entry.sequence;
    const int end = sequence.num_computed + entry.num_tokens;
    const int last_row = AppendRows(&batch, sequence.tokens, sequence.num_computed, end,
                                    sequence.blocks, sequence.seat);
    if (end == sequence.num_tokens()) batch.samples.push_back(SampleOf(sequence, last_row));
  }
  return batch;
}

}  // namespace latentd
