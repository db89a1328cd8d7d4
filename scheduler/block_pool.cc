#include "scheduler/block_pool.h"

#include <limits>

#include "base/check.h"
#include "kernels/cache_layout.h"

namespace latentd {

int64_t BlocksFor(int64_t num_tokens) { return (num_tokens + kBlockTokens - 1) / kBlockTokens; }

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

void BlockPool::Release(std::vector<int32_t>* blocks) {
  // Last block first, so that a sequence that takes them again gets them in order.
  for (auto id = blocks->rbegin(); id != blocks->rend(); ++id) {
    LATENTD_CHECK(*id >= 0 && *id < total() && in_use_[*id]);
    in_use_[*id] = false;
    free_.push_back(*id);
  }
  num_used_ -= static_cast<int64_t>(blocks->size());
  blocks->clear();
  LATENTD_CHECK(used() + free() == total());
}

}  // namespace latentd
