#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "base/check.h"
#include "base/random.h"
#include "kernels/cache_layout.h"
#include "kernels/cache_view.h"
#include "kernels/params.h"

namespace latentd {

// Memory that starts at a cache line, between guards. All of it is 0xFF: NaN as a half, a float and
// a scale; the topmost code.
class PoisonedMemory {
 public:
  explicit PoisonedMemory(int64_t size)
      : size_(size), memory_(size + 2 * kGuardBytes + kAlignment, kPoison) {
    const auto address = reinterpret_cast<uintptr_t>(memory_.data() + kGuardBytes);
    data_ = memory_.data() + kGuardBytes + (kAlignment - address % kAlignment) % kAlignment;
  }
  PoisonedMemory(const PoisonedMemory&) = delete;
  PoisonedMemory& operator=(const PoisonedMemory&) = delete;

  uint8_t* data() { return data_; }
  absl::Span<uint8_t> with_guards() {
    return {data_ - kGuardBytes, static_cast<size_t>(size_ + 2 * kGuardBytes)};
  }
  absl::Span<const uint8_t> bytes() const { return {data_, static_cast<size_t>(size_)}; }
  // Nothing was written beside it.
  bool GuardsIntact() const {
    const auto is_poison = [](uint8_t byte) { return byte == kPoison; };
    return std::all_of(memory_.data(), static_cast<const uint8_t*>(data_), is_poison) &&
           std::all_of(static_cast<const uint8_t*>(data_) + size_, memory_.data() + memory_.size(),
                       is_poison);
  }

  static constexpr uint8_t kPoison = 0xFF;
  static constexpr int64_t kGuardBytes = 256;

 private:
  static constexpr int64_t kAlignment = 64;
  const int64_t size_;
  std::vector<uint8_t> memory_;
  uint8_t* data_ = nullptr;
};

// The rows of one step, with the storage that its CacheView points to. Copies share step_pages.
struct PagedStep {
  std::vector<int32_t> cu_q_lens{0};
  std::vector<int32_t> kv_lens;
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
  // Of each row: its index among the tokens of all sequences that are there, sequence by sequence.
  std::vector<int64_t> tokens;
  std::vector<int32_t> first_step_page;
  std::shared_ptr<PoisonedMemory> step_pages;

  int64_t rows() const { return static_cast<int64_t>(positions.size()); }
};

// A hostile cache of one layer: the blocks of ragged sequences lie shuffled among unused ones,
// their seats likewise, every byte that no token wrote is poison, block tables end in -1, and the
// pool has guards on both sides. Two caches made with the same arguments have the same blocks and
// seats, so their bytes can be compared.
//
// A layer with own pages holds the last touched page of a sequence alone, so a step must be
// appended before it is attended (without own pages, any earlier append will do).
class PagedCache {
 public:
  // Of each sequence only the blocks of its last `kept` tokens are there: what comes before them
  // has been given back, as behind a window.
  PagedCache(const CacheLayer& layer, std::vector<int32_t> kv_lens, uint64_t seed = 1,
             int32_t kept = std::numeric_limits<int32_t>::max())
      : layer_(layer), kv_lens_(std::move(kv_lens)) {
    constexpr int kSpareBlocks = 3, kSpareSeats = 2;
    num_blocks_ = kSpareBlocks;
    for (const int32_t kv_len : kv_lens_) {
      first_.push_back(std::max(kv_len - kept, 0) / kBlockTokens * kBlockTokens);
      num_blocks_ += NumBlocks(kv_len - first_.back());
      max_blocks_ = std::max(max_blocks_, NumBlocks(kv_len) + 1);
    }
    const std::vector<int32_t> ids = Shuffled(num_blocks_, seed);
    block_table_.assign(kv_lens_.size() * max_blocks_, -1);
    auto next = ids.begin();
    for (size_t i = 0; i < kv_lens_.size(); ++i) {
      for (int64_t b = first_[i] / kBlockTokens; b < NumBlocks(kv_lens_[i]); ++b) {
        block_table_[i * max_blocks_ + b] = *next++;
      }
    }
    const int64_t num_seats = std::ssize(kv_lens_) + kSpareSeats;
    seat_of_ = Shuffled(num_seats, seed + 1);
    seat_of_.resize(kv_lens_.size());
    pool_ = std::make_unique<PoisonedMemory>(num_blocks_ * layer_.block_bytes() +
                                             num_seats * layer_.sequence_bytes());
  }
  PagedCache(const PagedCache&) = delete;
  PagedCache& operator=(const PagedCache&) = delete;

  // The step that computes the tokens [from[i], to[i]) of every sequence, which then has to[i]
  // tokens. Its step pages are poison.
  PagedStep Step(const std::vector<int32_t>& from, const std::vector<int32_t>& to) const {
    PagedStep step;
    step.kv_lens = to;
    int64_t first_token = 0;
    for (size_t i = 0; i < kv_lens_.size(); ++i) {
      LATENTD_CHECK(first_[i] <= from[i] && from[i] <= to[i] && to[i] <= kv_lens_[i]);
      for (int32_t position = from[i]; position < to[i]; ++position) {
        step.positions.push_back(position);
        step.slots.push_back(SlotOf(static_cast<int>(i), position));
        step.tokens.push_back(first_token + position - first_[i]);
      }
      step.cu_q_lens.push_back(static_cast<int32_t>(step.positions.size()));
      first_token += kv_lens_[i] - first_[i];
    }
    step.first_step_page = StepPages(step.cu_q_lens, step.kv_lens);
    step.step_pages =
        std::make_shared<PoisonedMemory>(step.first_step_page.back() * layer_.own_page_bytes());
    return step;
  }
  // Every token of every sequence.
  PagedStep WholeStep() const { return Step(first_, kv_lens_); }
  // The last `q_len` tokens of every sequence (fewer where it has fewer).
  PagedStep LastStep(int32_t q_len) const { return Step(BeforeLast(q_len), kv_lens_); }
  // What comes before LastStep(q_len).
  PagedStep StepBeforeLast(int32_t q_len) const { return Step(first_, BeforeLast(q_len)); }

  // Borrows from both; `step` must outlive the view.
  CacheView View(const PagedStep& step) {
    return {.layer = pool_->data(),
            .block_bytes = layer_.block_bytes(),
            .cu_q_lens = step.cu_q_lens,
            .kv_lens = step.kv_lens,
            .block_table = block_table_,
            .max_blocks = max_blocks_,
            .slots = step.slots,
            .seats = pool_->data() + num_blocks_ * layer_.block_bytes(),
            .seat_of = seat_of_,
            .step_pages = step.step_pages->data(),
            .first_step_page = step.first_step_page};
  }

  // Gives back the blocks of `sequence` that hold only positions below `position`: their places in
  // the block table are -1, their bytes poison. For a window: first row - window + 1.
  void FreeBefore(int sequence, int32_t position) {
    for (int32_t b = 0; (b + 1) * kBlockTokens <= position; ++b) {
      int32_t& block = block_table_[sequence * max_blocks_ + b];
      if (block < 0) continue;
      std::fill_n(pool_->data() + block * layer_.block_bytes(), layer_.block_bytes(),
                  PoisonedMemory::kPoison);
      block = -1;
    }
  }

  int64_t SlotOf(int sequence, int32_t position) const {
    const int64_t block = block_table_[sequence * max_blocks_ + position / kBlockTokens];
    return block * kBlockTokens + position % kBlockTokens;
  }
  int64_t num_tokens() const {
    return std::accumulate(kv_lens_.begin(), kv_lens_.end(), int64_t{0}) -
           std::accumulate(first_.begin(), first_.end(), int64_t{0});
  }
  // Blocks, then seats. An own page keeps what earlier pages left behind its last token, so the
  // seats of caches that were filled in other steps may differ.
  absl::Span<const uint8_t> bytes() const { return pool_->bytes(); }
  absl::Span<const uint8_t> block_bytes() const {
    return bytes().first(num_blocks_ * layer_.block_bytes());
  }
  bool GuardsIntact() const { return pool_->GuardsIntact(); }
  PoisonedMemory& memory() { return *pool_; }

 private:
  static int64_t NumBlocks(int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }
  static std::vector<int32_t> Shuffled(int64_t count, uint64_t seed) {
    std::vector<int32_t> ids(count);
    std::iota(ids.begin(), ids.end(), 0);
    for (int64_t i = count - 1; i > 0; --i) std::swap(ids[i], ids[RandomBits(seed, i) % (i + 1)]);
    return ids;
  }
  std::vector<int32_t> BeforeLast(int32_t q_len) const {
    std::vector<int32_t> from;
    for (size_t i = 0; i < kv_lens_.size(); ++i) {
      from.push_back(std::max(kv_lens_[i] - q_len, first_[i]));
    }
    return from;
  }

  const CacheLayer layer_;
  const std::vector<int32_t> kv_lens_;
  std::vector<int32_t> first_;  // position that a sequence's tokens are there from
  int64_t num_blocks_ = 0;
  int64_t max_blocks_ = 1;
  std::vector<int32_t> block_table_;
  std::vector<int32_t> seat_of_;
  std::unique_ptr<PoisonedMemory> pool_;
};

// The rows of `all` [tokens, dims] that a step computes.
inline std::vector<float> RowsOf(const PagedStep& step, const std::vector<float>& all,
                                 int64_t dims) {
  std::vector<float> rows;
  rows.reserve(step.tokens.size() * dims);
  for (const int64_t token : step.tokens) {
    rows.insert(rows.end(), all.begin() + token * dims, all.begin() + (token + 1) * dims);
  }
  return rows;
}

// Those at positions below `sinks`.
inline std::vector<float> SinkRowsOf(const PagedStep& step, int sinks,
                                     const std::vector<float>& all, int64_t dims) {
  std::vector<float> rows;
  for (size_t t = 0; t < step.tokens.size(); ++t) {
    if (step.positions[t] >= sinks) continue;
    const auto row = all.begin() + step.tokens[t] * dims;
    rows.insert(rows.end(), row, row + dims);
  }
  return rows;
}

}  // namespace latentd
