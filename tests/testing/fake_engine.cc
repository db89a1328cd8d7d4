#include "tests/testing/fake_engine.h"

#include <algorithm>
#include <utility>

#include "absl/algorithm/container.h"
#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "base/status_macros.h"
#include "kernels/cache_layout.h"

namespace latentd {
namespace {

constexpr uint64_t kStart = 0x5eed;

// The first position that the token at `position` sees.
int64_t FirstSeen(int64_t position, int sliding_window) {
  return sliding_window > 0 ? std::max<int64_t>(0, position - sliding_window + 1) : 0;
}

// The state after one more token.
uint64_t Extend(uint64_t state, int32_t token, int64_t position) {
  return RandomBits(state, (static_cast<uint64_t>(position) << 32) + token) | 1;
}

int32_t TokenOf(uint64_t all_states, const SamplingParams& params,
                const std::vector<int32_t>& banned, int vocab_size) {
  const uint64_t key = RandomBits(all_states, params.temperature == 0.0f ? 0 : params.seed + 1);
  for (uint64_t attempt = 0;; ++attempt) {
    const auto token = static_cast<int32_t>(RandomBits(key, attempt) % vocab_size);
    if (!absl::c_linear_search(banned, token)) return token;
  }
}

absl::Status Broken(absl::string_view what, int64_t a, int64_t b) {
  return absl::InternalError(absl::StrCat("bad batch: ", what, ": ", a, " and ", b));
}

EngineInfo InfoOf(const FakeEngine::Options& options) {
  return {.model_name = "fake",
          .family = "fake",
          .vocab_size = options.vocab_size,
          .num_layers = 1,
          .max_context = options.max_context,
          .num_blocks = options.num_blocks,
          .num_sequences = options.num_sequences,
          .sliding_window = options.sliding_window,
          .bytes_per_token = 2.0,
          .bytes_per_sequence = options.bytes_per_sequence,
          .k_bytes_per_token = 1.0,
          .v_bytes_per_token = 1.0,
          .full_bytes_per_token = 8.0,
          .cache_name = "fake",
          .device = "cpu",
          .weight_type = "bf16",
          .decode_kernels = "direct (2 layers)"};
}

}  // namespace

FakeEngine::FakeEngine(Options options)
    : options_(std::move(options)),
      info_(InfoOf(options_)),
      slots_(options_.num_blocks * kBlockTokens),
      seats_(options_.num_sequences) {}

absl::StatusOr<absl::Span<const float>> FakeEngine::Logits(absl::Span<const int32_t>) {
  return absl::UnimplementedError("this engine has no logits");
}

absl::StatusOr<StepOutput> FakeEngine::Step(const Batch& batch) {
  if (dead_) return absl::InternalError("a step after the engine's death");
  const int64_t step = num_steps_++;
  if (options_.on_step) {
    if (absl::Status status = options_.on_step(step, batch); !status.ok()) {
      dead_ = true;
      return status;
    }
  }
  RETURN_IF_ERROR(Check(batch));
  for (int s = 0; s < batch.num_sequences(); ++s) {
    Seat& seat = seats_[batch.seats[s]];
    for (int row = batch.cu_q_lens[s]; row < batch.cu_q_lens[s + 1]; ++row) {
      const int64_t position = batch.positions[row];
      if (position == 0) seat.state = kStart;
      seat.state = Extend(seat.state, batch.token_ids[row], position);
      slots_[batch.slots[row]] = {batch.token_ids[row], seat.state};
    }
    seat.num_computed = batch.kv_lens[s];
  }
  StepOutput output;
  for (const BatchSample& sample : batch.samples) {
    ASSIGN_OR_RETURN(SampleResult result, Draw(batch, sample));
    output.samples.push_back(std::move(result));
  }
  return output;
}

absl::Status FakeEngine::Check(const Batch& batch) const {
  const size_t rows = batch.token_ids.size();
  const size_t sequences = batch.kv_lens.size();
  if (rows == 0) return Broken("rows", 0, 0);
  if (batch.positions.size() != rows) return Broken("positions", batch.positions.size(), rows);
  if (batch.slots.size() != rows) return Broken("slots", batch.slots.size(), rows);
  if (batch.cu_q_lens.size() != sequences + 1 || batch.cu_q_lens.front() != 0 ||
      batch.cu_q_lens.back() != static_cast<int32_t>(rows)) {
    return Broken("cu_q_lens", batch.cu_q_lens.size(), sequences);
  }
  if (batch.block_table.size() != sequences * batch.max_blocks) {
    return Broken("block_table", batch.block_table.size(), sequences * batch.max_blocks);
  }
  if (batch.seats.size() != sequences) return Broken("seats", batch.seats.size(), sequences);
  for (size_t s = 0; s < sequences; ++s) RETURN_IF_ERROR(CheckSequence(batch, s));
  std::vector<int32_t> seats = batch.seats;
  absl::c_sort(seats);
  const auto shared = std::adjacent_find(seats.begin(), seats.end());
  if (shared != seats.end()) return Broken("two sequences share a seat", *shared, *shared);
  std::vector<int32_t> blocks;
  absl::c_copy_if(batch.block_table, std::back_inserter(blocks), [](int32_t b) { return b >= 0; });
  absl::c_sort(blocks);
  const auto twice = std::adjacent_find(blocks.begin(), blocks.end());
  if (twice != blocks.end()) return Broken("a block has two owners", *twice, *twice);
  return absl::OkStatus();
}

absl::Status FakeEngine::CheckSequence(const Batch& batch, int s) const {
  const int begin = batch.cu_q_lens[s];
  const int end = batch.cu_q_lens[s + 1];
  if (begin >= end) return Broken("rows of a sequence", begin, end);
  const int32_t kv_len = batch.kv_lens[s];
  if (kv_len > info_.max_context) return Broken("kv_len", kv_len, info_.max_context);
  const int32_t seat = batch.seats[s];
  if (seat < 0 || seat >= info_.num_sequences) return Broken("seat", seat, info_.num_sequences);
  const int32_t first = kv_len - (end - begin);
  if (first > 0 && seats_[seat].num_computed != first) {
    return Broken("tokens that the seat knows of", seats_[seat].num_computed, first);
  }
  const int32_t* table = &batch.block_table[s * batch.max_blocks];
  const int64_t first_block = FirstSeen(first, info_.sliding_window) / kBlockTokens;
  for (int64_t b = 0; b < batch.max_blocks; ++b) {
    if (table[b] < -1 || table[b] >= info_.num_blocks) {
      return Broken("block", table[b], info_.num_blocks);
    }
    const bool seen = b >= first_block && b * kBlockTokens < kv_len;
    if (seen && table[b] == -1) return Broken("missing block", b, kv_len);
    if (b < first_block && table[b] != -1) return Broken("block behind the window", b, first);
  }
  for (int row = begin; row < end; ++row) {
    const int32_t position = batch.positions[row];
    if (position != kv_len - (end - row)) return Broken("position", position, kv_len);
    const int64_t slot =
        int64_t{table[position / kBlockTokens]} * kBlockTokens + position % kBlockTokens;
    if (batch.slots[row] != slot) return Broken("slot", batch.slots[row], slot);
  }
  return absl::OkStatus();
}

const FakeEngine::Slot& FakeEngine::Read(const Batch& batch, int s, int64_t position) const {
  const int64_t block = batch.block_table[s * batch.max_blocks + position / kBlockTokens];
  return slots_[block * kBlockTokens + position % kBlockTokens];
}

absl::StatusOr<SampleResult> FakeEngine::Draw(const Batch& batch, const BatchSample& sample) const {
  if (sample.row < 0 || sample.row >= batch.num_tokens()) {
    return Broken("sample row", sample.row, batch.num_tokens());
  }
  const auto next = absl::c_upper_bound(batch.cu_q_lens, sample.row);
  const int s = static_cast<int>(next - batch.cu_q_lens.begin()) - 1;
  const int64_t num_tokens = batch.kv_lens[s];
  if (sample.row != *next - 1) return Broken("sample row is not the last", sample.row, *next);
  if (sample.position != num_tokens) return Broken("sample position", sample.position, num_tokens);
  uint64_t all_states = 0;
  for (int64_t i = FirstSeen(num_tokens - 1, info_.sliding_window); i < num_tokens; ++i) {
    const Slot& slot = Read(batch, s, i);
    all_states = RandomBits(all_states, slot.state);
    if (!sample.tokens.empty() && sample.tokens[i] != slot.token) {
      return Broken("token", sample.tokens[i], slot.token);
    }
  }
  if (options_.is_nan && options_.is_nan(sample)) return SampleResult{.ok = false};
  return SampleResult{.token_id =
                          TokenOf(all_states, sample.params, sample.banned, info_.vocab_size)};
}

std::vector<int32_t> FakeEngine::Expected(const Request& request, int vocab_size,
                                          int sliding_window) {
  std::vector<uint64_t> states = {kStart};  // and the state after each token
  auto append = [&](int32_t token) {
    states.push_back(Extend(states.back(), token, static_cast<int64_t>(states.size()) - 1));
  };
  for (int32_t token : request.prompt) append(token);
  std::vector<int32_t> output;
  while (static_cast<int>(output.size()) < request.max_new_tokens) {
    const bool may_stop = static_cast<int>(output.size()) >= request.min_new_tokens;
    uint64_t all_states = 0;
    const auto num_tokens = static_cast<int64_t>(states.size()) - 1;
    for (int64_t i = FirstSeen(num_tokens - 1, sliding_window); i < num_tokens; ++i) {
      all_states = RandomBits(all_states, states[i + 1]);
    }
    output.push_back(TokenOf(all_states, request.sampling,
                             may_stop ? std::vector<int32_t>{} : request.stop_token_ids,
                             vocab_size));
    if (absl::c_linear_search(request.stop_token_ids, output.back())) break;
    append(output.back());
  }
  return output;
}

}  // namespace latentd
