#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <numeric>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "kernels/cache_layout.h"
#include "kernels/params.h"

namespace latentd {

// The rows of one step, with the storage that its CacheView points to.
struct PagedStep {
  std::vector<int32_t> cu_q_lens{0};
  std::vector<int32_t> kv_lens;
  std::vector<int32_t> positions;
  std::vector<int64_t> slots;
  // Of each row: its index among the tokens of all sequences, sequence by sequence.
  std::vector<int64_t> tokens;

  int64_t rows() const { return static_cast<int64_t>(positions.size()); }
};

// A hostile cache of one layer: the blocks of ragged sequences lie shuffled among unused ones,
// every byte that no token wrote is 0xFF (NaN as a half, a float and a scale; the topmost code),
// block tables end in -1, and the pool has guards of 0xFF on both sides. Two caches made with the
// same arguments have the same blocks, so their bytes can be compared.
class PagedCache {
 public:
  PagedCache(const CacheLayer& layer, std::vector<int32_t> kv_lens, uint64_t seed = 1)
      : layer_(layer), kv_lens_(std::move(kv_lens)) {
    constexpr int kSpareBlocks = 3;
    int64_t num_blocks = kSpareBlocks;
    for (const int32_t kv_len : kv_lens_) {
      num_blocks += NumBlocks(kv_len);
      max_blocks_ = std::max(max_blocks_, NumBlocks(kv_len) + 1);
    }
    std::vector<int32_t> ids(num_blocks);
    std::iota(ids.begin(), ids.end(), 0);
    for (int64_t i = num_blocks - 1; i > 0; --i) {
      std::swap(ids[i], ids[RandomBits(seed, i) % (i + 1)]);
    }
    block_table_.assign(kv_lens_.size() * max_blocks_, -1);
    auto next = ids.begin();
    for (size_t i = 0; i < kv_lens_.size(); ++i) {
      for (int64_t b = 0; b < NumBlocks(kv_lens_[i]); ++b) {
        block_table_[i * max_blocks_ + b] = *next++;
      }
    }
    pool_bytes_ = num_blocks * layer_.block_bytes();
    memory_.assign(pool_bytes_ + 2 * kGuardBytes + kAlignment, kPoison);
    const auto address = reinterpret_cast<uintptr_t>(memory_.data() + kGuardBytes);
    pool_ = memory_.data() + kGuardBytes + (kAlignment - address % kAlignment) % kAlignment;
  }
  PagedCache(const PagedCache&) = delete;
  PagedCache& operator=(const PagedCache&) = delete;

  // The step that computes the tokens [from[i], to[i]) of every sequence, which then has to[i]
  // tokens.
  PagedStep Step(const std::vector<int32_t>& from, const std::vector<int32_t>& to) const {
    PagedStep step;
    step.kv_lens = to;
    int64_t first_token = 0;
    for (size_t i = 0; i < kv_lens_.size(); ++i) {
      LATENTD_CHECK(0 <= from[i] && from[i] <= to[i] && to[i] <= kv_lens_[i]);
      for (int32_t position = from[i]; position < to[i]; ++position) {
        step.positions.push_back(position);
        step.slots.push_back(SlotOf(static_cast<int>(i), position));
        step.tokens.push_back(first_token + position);
      }
      step.cu_q_lens.push_back(static_cast<int32_t>(step.positions.size()));
      first_token += kv_lens_[i];
    }
    return step;
  }
  // Every token of every sequence.
  PagedStep WholeStep() const { return Step(std::vector<int32_t>(kv_lens_.size(), 0), kv_lens_); }
  // The last `q_len` tokens of every sequence (fewer where it has fewer).
  PagedStep LastStep(int32_t q_len) const {
    std::vector<int32_t> from;
    for (const int32_t kv_len : kv_lens_) from.push_back(std::max(kv_len - q_len, 0));
    return Step(from, kv_lens_);
  }

  // Borrows from both; `step` must outlive the view.
  CacheView View(const PagedStep& step) {
    return {.layer = pool_,
            .block_bytes = layer_.block_bytes(),
            .cu_q_lens = step.cu_q_lens,
            .kv_lens = step.kv_lens,
            .block_table = block_table_,
            .max_blocks = max_blocks_,
            .slots = step.slots};
  }

  int64_t SlotOf(int sequence, int32_t position) const {
    const int64_t block = block_table_[sequence * max_blocks_ + position / kBlockTokens];
    return block * kBlockTokens + position % kBlockTokens;
  }
  int64_t num_tokens() const {
    return std::accumulate(kv_lens_.begin(), kv_lens_.end(), int64_t{0});
  }
  absl::Span<const uint8_t> bytes() const { return {pool_, static_cast<size_t>(pool_bytes_)}; }

  // Nothing was written outside the pool.
  bool GuardsIntact() const {
    const auto is_poison = [](uint8_t byte) { return byte == kPoison; };
    return std::all_of(memory_.data(), static_cast<const uint8_t*>(pool_), is_poison) &&
           std::all_of(static_cast<const uint8_t*>(pool_) + pool_bytes_,
                       memory_.data() + memory_.size(), is_poison);
  }

  static constexpr uint8_t kPoison = 0xFF;

 private:
  static constexpr int64_t kGuardBytes = 256;
  static constexpr int64_t kAlignment = 64;
  static int64_t NumBlocks(int64_t tokens) { return (tokens + kBlockTokens - 1) / kBlockTokens; }

  const CacheLayer layer_;
  const std::vector<int32_t> kv_lens_;
  std::vector<int32_t> block_table_;
  int64_t max_blocks_ = 1;
  int64_t pool_bytes_ = 0;
  std::vector<uint8_t> memory_;
  uint8_t* pool_ = nullptr;
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

}  // namespace latentd
