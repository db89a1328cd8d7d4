#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "engine/engine.h"
#include "scheduler/request.h"

namespace latentd {

// An engine without a model that is as sensitive to its caller's mistakes as a real one. It keeps
// each token in the slot that the batch names, and what a sequence remembers of all of its tokens
// in its seat. The next token is drawn from all that it reads back through the block table, of the
// window's positions, so a wrong slot, a wrong table, a block that two sequences share or one that
// was given away too early changes the tokens, and so does a seat that another sequence used. A
// batch that breaks the contract of engine/batch.h, or moves a sequence from its seat, is an error.
// One thread at a time.
class FakeEngine final : public Engine {
 public:
  struct Options {
    int vocab_size = 1000;
    int max_context = 4096;
    int64_t num_blocks = 64;
    int num_sequences = 64;
    int sliding_window = 0;
    double bytes_per_sequence = 0;
    // Called at the start of each step (counted from 0); an error is the step's. Delays and clocks
    // go here.
    std::function<absl::Status(int64_t step, const Batch& batch)> on_step;
    // Whether this row's logits are NaN.
    std::function<bool(const BatchSample& sample)> is_nan;
  };
  explicit FakeEngine(Options options);

  const EngineInfo& info() const override { return info_; }
  absl::StatusOr<StepOutput> Step(const Batch& batch) override;
  absl::StatusOr<absl::Span<const float>> Logits(absl::Span<const int32_t> rows) override;

  // What the request generates when nothing ends it early: stop ids and max_new_tokens obeyed.
  static std::vector<int32_t> Expected(const Request& request, int vocab_size = 1000,
                                       int sliding_window = 0);

 private:
  struct Slot {
    int32_t token = -1;
    uint64_t state = 0;  // of the sequence up to here; 0: never written
  };

  // What a sequence keeps in its seat: how many of its tokens were computed, and its state there.
  struct Seat {
    int64_t num_computed = 0;
    uint64_t state = 0;
  };

  absl::Status Check(const Batch& batch) const;
  absl::Status CheckSequence(const Batch& batch, int sequence) const;
  const Slot& Read(const Batch& batch, int sequence, int64_t position) const;
  absl::StatusOr<SampleResult> Draw(const Batch& batch, const BatchSample& sample) const;

  const Options options_;
  const EngineInfo info_;
  std::vector<Slot> slots_;  // block id * kBlockTokens + offset
  std::vector<Seat> seats_;
  int64_t num_steps_ = 0;
  bool dead_ = false;
};

}  // namespace latentd
