#include "scheduler/block_pool.h"

#include <algorithm>
#include <limits>

#include "base/check.h"
#include "kernels/cache_layout.h"

namespace latentd {

int64_t BlocksFor(int64_t num_tokens) { return (num_tokens + kBlockTokens - 1) / kBlockTokens; }

int64_t MostBlocksFor(int64_t num_tokens, int sliding_window) {
  const int64_t all = BlocksFor(num_tokens);
  return sliding_window > 0 ? std::min(all, BlocksFor(sliding_window - 1) + 1) : all;
}

BlockPool::BlockPool(int64_t num_blocks) : in_use_(num_blocks, false) {
  LATENTD_CHECK(num_blocks <= std::numeric_limits<int32_t>::max());
  free_.reserve(num_blocks);
  for (int64_t id = num_blocks - 1; id >= 0; --id) free_.push_back(static_cast<int32_t>(id));
}

bool BlockPool::Allocate(int64_t count, std::vector<int32_t>* blocks) {
  if (count > free()) return false;
  for (int64_t i = 0; i < count; ++i) {
    const int32_t id = free_.back();
    free_.pop_back();
    LATENTD_CHECK(!in_use_[id]);
    in_use_[id] = true;
    blocks->push_back(id);
  }
  num_used_ += count;
  LATENTD_CHECK(used() + free() == total());
  return true;
}

void BlockPool::Release(int32_t block) {
  LATENTD_CHECK(block >= 0 && block < total() && in_use_[block]);
  in_use_[block] = false;
  free_.push_back(block);
  --num_used_;
  LATENTD_CHECK(used() + free() == total());
}

void BlockPool::Release(std::vector<int32_t>* blocks) {
  // Last block first, so that a sequence that takes them again gets them in order.
  for (auto id = blocks->rbegin(); id != blocks->rend(); ++id) {
    if (*id != -1) Release(*id);
  }
  blocks->clear();
}

}  // namespace latentd
