#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/thread_pool.h"

namespace latentd {

// Causal attention over one window of T tokens at positions 0 .. T - 1, keys after RoPE, and its
// gradient, in fp32. What a query sees, and its score, is as AttentionSpec (kernels/params.h) says.
// Scores are computed in blocks of queries and never kept: the way back computes them again. One
// thread at a time; results do not depend on the pool's threads.
class AttentionGradient {
 public:
  struct Shape {
    int num_heads = 0;
    int num_kv_heads = 0;
    int head_dim = 0;
    float softmax_scale = 0;
    int window = 0;                   // > 0: a query sees the last `window` positions alone
    std::vector<float> alibi_slopes;  // [num_heads], or empty
  };

  AttentionGradient(Shape shape, ThreadPool& pool) : shape_(shape), pool_(pool) {}

  // q and out [tokens, num_heads, head_dim]; k and v [tokens, num_kv_heads, head_dim].
  void Forward(const float* q, const float* k, const float* v, int64_t tokens, float* out);

  // dq, dk and dv, shaped as q, k and v, from dout, shaped as `out`. dq may be dout.
  void Backward(const float* q, const float* k, const float* v, const float* dout, int64_t tokens,
                float* dq, float* dk, float* dv);

 private:
  // A block of one head's queries and the keys that any of them sees.
  struct Block {
    int head;
    int64_t query, queries;  // first, number
    int64_t key, keys;

    int64_t last_key(int64_t row) const { return query + row - key; }  // in the block
  };
  Block BlockAt(int head, int64_t query, int64_t tokens) const;
  // Attention weights [queries, keys] of the block; 0 where a query does not see.
  void Weights(const Block& block, const float* q, const float* k, float* weights) const;
  void BackwardHead(int head, const float* q, const float* k, const float* v, const float* dout,
                    int64_t tokens, float* scratch, float* dq, float* dk, float* dv) const;
  int64_t q_dim() const { return int64_t{shape_.num_heads} * shape_.head_dim; }
  int64_t kv_dim() const { return int64_t{shape_.num_kv_heads} * shape_.head_dim; }
  int64_t kv_head(int head) const { return head / (shape_.num_heads / shape_.num_kv_heads); }
  // The calling thread's part of scratch_.
  float* Scratch(int thread, int64_t size) { return scratch_.data() + thread * size; }

  const Shape shape_;
  ThreadPool& pool_;
  std::vector<float> scratch_;            // [threads, ...]
  std::vector<float> head_dk_, head_dv_;  // [num_heads, tokens, head_dim]: before heads are summed
};

}  // namespace latentd
