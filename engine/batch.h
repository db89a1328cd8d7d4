#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "engine/sampling_params.h"
#include "kernels/params.h"

namespace latentd {

// One row of logits that a step turns into a token.
struct BatchSample {
  int32_t row = 0;  // index into the step's T token rows
  SamplingParams params;
  std::vector<int32_t>
      tokens;  // the sequence so far (prompt, then output); filled only where penalties need it
  int num_prompt_tokens = 0;
  int64_t position = 0;         // of the token that is drawn
  std::vector<int32_t> banned;  // ids that may not be drawn: stop ids before min_tokens
};

// One row whose logits give the log probability of a known next token (perplexity, prompt
// logprobs).
struct BatchScore {
  int32_t row = 0;
  int32_t token_id = 0;
};

// What one step computes: self-contained plain data. S sequences with T token rows in all, L of
// them sampled. A sequence's rows are its next uncomputed tokens; blocks for them are already in
// its row of the block table, and it has a seat.
struct Batch {
  std::vector<int32_t> token_ids;    // [T]
  std::vector<int32_t> positions;    // [T]
  std::vector<int64_t> slots;        // [T] block id * kBlockTokens + offset
  std::vector<int32_t> cu_q_lens;    // [S + 1]
  std::vector<int32_t> kv_lens;      // [S], tokens after this step
  std::vector<int32_t> block_table;  // [S, max_blocks], -1 past the end
  int64_t max_blocks = 0;
  std::vector<int32_t> seats;        // [S], in [0, EngineInfo::num_sequences), no two the same
  std::vector<BatchSample> samples;  // [L]
  std::vector<BatchScore> scores;    // [N]

  int num_tokens() const { return static_cast<int>(token_ids.size()); }
  int num_sequences() const { return static_cast<int>(kv_lens.size()); }
};

struct StepOutput {
  std::vector<SampleResult> samples;  // [L], in the batch's order
  std::vector<float> logprobs;        // [N] of the batch's scores, natural log
};

// Adds a sequence's tokens [begin, end) as rows. `blocks` holds the sequence's blocks for [0, end)
// (-1 for those behind its window, given back); batch->max_blocks, set before the first call, is at
// least their number. `seat` is the sequence's, which keeps what it must remember beside its
// blocks: it stays the same from the sequence's first step to its last. Returns the index of the
// last row.
int AppendRows(Batch* batch, absl::Span<const int32_t> tokens, int begin, int end,
               absl::Span<const int32_t> blocks, int32_t seat);

}  // namespace latentd
