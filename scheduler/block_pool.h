#pragma once

#include <cstdint>
#include <vector>

namespace latentd {

// Blocks that hold `num_tokens` tokens.
int64_t BlocksFor(int64_t num_tokens);

// The most blocks that a sequence must hold at once to compute one token after the other up to
// `num_tokens`. With a sliding window (> 0) a token sees itself and the sliding_window - 1
// positions before it, and blocks behind those of the next token are given back.
int64_t MostBlocksFor(int64_t num_tokens, int sliding_window);

// Which blocks of the engine's cache are free. Knows ids, not bytes. Owned by the scheduler, one
// thread. Always holds, and is checked: in use + free == total, and no block is released twice.
class BlockPool {
 public:
  explicit BlockPool(int64_t num_blocks);

  // Appends `count` free blocks to `blocks`, the latest released first (their memory is warm), or
  // none: false.
  bool Allocate(int64_t count, std::vector<int32_t>* blocks);

  // Takes back one block, which is in use.
  void Release(int32_t block);

  // Takes back all of `blocks` but the -1 among them, and leaves it empty.
  void Release(std::vector<int32_t>* blocks);

  int64_t total() const { return static_cast<int64_t>(in_use_.size()); }
  int64_t free() const { return static_cast<int64_t>(free_.size()); }
  int64_t used() const { return num_used_; }

 private:
  std::vector<int32_t> free_;  // a stack
  std::vector<bool> in_use_;   // by block id
  int64_t num_used_ = 0;
};

}  // namespace latentd
