#include "engine/compressor/attention_gradient.h"

#include <cblas.h>

#include <algorithm>

#include "engine/compressor/float_rows.h"

namespace latentd {
namespace {

// Half of the scores of a block on the diagonal are computed in vain: small; but large enough for
// the library's products.
constexpr int64_t kBlockQueries = 128;

// out = factor * op(a) b (+ out): [m, n], k terms each; strides in values.
struct Sides {
  const float* a;
  int64_t a_stride;
  const float* b;
  int64_t b_stride;
  float* out;
  int64_t out_stride;
};

void Gemm(CBLAS_TRANSPOSE ta, CBLAS_TRANSPOSE tb, int64_t m, int64_t n, int64_t k, float factor,
          const Sides& s, bool accumulate) {
  cblas_sgemm(CblasRowMajor, ta, tb, m, n, k, factor, s.a, s.a_stride, s.b, s.b_stride,
              accumulate ? 1.0f : 0.0f, s.out, s.out_stride);
}

}  // namespace

AttentionGradient::Block AttentionGradient::BlockAt(int head, int64_t query, int64_t tokens) const {
  const int64_t end = std::min(tokens, query + kBlockQueries);
  const int64_t key = shape_.window > 0 ? std::max<int64_t>(0, query - shape_.window + 1) : 0;
  return {.head = head, .query = query, .queries = end - query, .key = key, .keys = end - key};
}

void AttentionGradient::Weights(const Block& block, const float* q, const float* k,
                                float* weights) const {
  Gemm(CblasNoTrans, CblasTrans, block.queries, block.keys, shape_.head_dim, shape_.softmax_scale,
       {.a = q + block.query * q_dim() + int64_t{block.head} * shape_.head_dim,
        .a_stride = q_dim(),
        .b = k + block.key * kv_dim() + kv_head(block.head) * shape_.head_dim,
        .b_stride = kv_dim(),
        .out = weights,
        .out_stride = block.keys},
       false);
  const float slope = shape_.alibi_slopes.empty() ? 0.0f : shape_.alibi_slopes[block.head];
  for (int64_t r = 0; r < block.queries; ++r) {
    float* row = weights + r * block.keys;
    const int64_t last = block.last_key(r);
    const int64_t first = shape_.window > 0 ? std::max<int64_t>(0, last - shape_.window + 1) : 0;
    if (slope != 0) {
      for (int64_t i = first; i <= last; ++i) row[i] += slope * static_cast<float>(i - last);
    }
    float* seen = row + first;
    const int64_t count = last - first + 1;
    const float largest = Largest(seen, count);
    for (int64_t i = 0; i < count; ++i) seen[i] -= largest;
    ExpInPlace(seen, count);
    const float inverse = 1.0f / Sum(seen, count);
    for (int64_t i = 0; i < count; ++i) seen[i] *= inverse;
    std::fill(row, seen, 0.0f);
    std::fill(seen + count, row + block.keys, 0.0f);
  }
}

void AttentionGradient::Forward(const float* q, const float* k, const float* v, int64_t tokens,
                                float* out) {
  const int64_t blocks = (tokens + kBlockQueries - 1) / kBlockQueries;
  const int64_t scratch = kBlockQueries * tokens;
  scratch_.resize(pool_.num_threads() * scratch);
  pool_.ParallelFor(shape_.num_heads * blocks, 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t i = begin; i < end; ++i) {
      // The longest first, so that no thread is left with one at the end.
      const int64_t query = (blocks - 1 - i / shape_.num_heads) * kBlockQueries;
      const Block block = BlockAt(static_cast<int>(i % shape_.num_heads), query, tokens);
      float* weights = Scratch(thread, scratch);
      Weights(block, q, k, weights);
      Gemm(CblasNoTrans, CblasNoTrans, block.queries, shape_.head_dim, block.keys, 1.0f,
           {.a = weights,
            .a_stride = block.keys,
            .b = v + block.key * kv_dim() + kv_head(block.head) * shape_.head_dim,
            .b_stride = kv_dim(),
            .out = out + block.query * q_dim() + int64_t{block.head} * shape_.head_dim,
            .out_stride = q_dim()},
           false);
    }
  });
}

// With weights P, out = P v and scores s: dv = P^T dout, dP = dout v^T,
// ds = P (dP - rowsum(P dP)), dq = scale ds k, dk = scale ds^T q.
void AttentionGradient::BackwardHead(int head, const float* q, const float* k, const float* v,
                                     const float* dout, int64_t tokens, float* scratch, float* dq,
                                     float* dk, float* dv) const {
  const int64_t dims = shape_.head_dim;
  const int64_t of_head = int64_t{head} * dims, of_kv_head = kv_head(head) * dims;
  for (int64_t query = 0; query < tokens; query += kBlockQueries) {
    const Block block = BlockAt(head, query, tokens);
    const int64_t queries = block.queries, keys = block.keys;
    float* weights = scratch;
    float* ds = scratch + kBlockQueries * tokens;
    Weights(block, q, k, weights);
    const float* block_dout = dout + query * q_dim() + of_head;
    Gemm(CblasTrans, CblasNoTrans, keys, dims, queries, 1.0f,
         {weights, keys, block_dout, q_dim(), dv + block.key * dims, dims}, true);
    Gemm(CblasNoTrans, CblasTrans, queries, keys, dims, 1.0f,
         {block_dout, q_dim(), v + block.key * kv_dim() + of_kv_head, kv_dim(), ds, keys}, false);
    for (int64_t r = 0; r < queries; ++r) {
      const float* p = weights + r * keys;
      float* row = ds + r * keys;
      const float mean = Dot(p, row, keys);
      for (int64_t i = 0; i < keys; ++i) row[i] = p[i] * (row[i] - mean);
    }
    const float scale = shape_.softmax_scale;
    Gemm(CblasTrans, CblasNoTrans, keys, dims, queries, scale,
         {ds, keys, q + query * q_dim() + of_head, q_dim(), dk + block.key * dims, dims}, true);
    Gemm(CblasNoTrans, CblasNoTrans, queries, dims, keys, scale,
         {ds, keys, k + block.key * kv_dim() + of_kv_head, kv_dim(), dq + query * q_dim() + of_head,
          q_dim()},
         false);
  }
}

void AttentionGradient::Backward(const float* q, const float* k, const float* v, const float* dout,
                                 int64_t tokens, float* dq, float* dk, float* dv) {
  const int64_t scratch = 2 * kBlockQueries * tokens;
  const int64_t of_head = tokens * shape_.head_dim;
  scratch_.resize(pool_.num_threads() * scratch);
  head_dk_.assign(shape_.num_heads * of_head, 0.0f);
  head_dv_.assign(shape_.num_heads * of_head, 0.0f);
  pool_.ParallelFor(shape_.num_heads, 1, [&](int64_t begin, int64_t end, int thread) {
    for (int64_t head = begin; head < end; ++head) {
      BackwardHead(static_cast<int>(head), q, k, v, dout, tokens, Scratch(thread, scratch), dq,
                   head_dk_.data() + head * of_head, head_dv_.data() + head * of_head);
    }
  });
  const int64_t per_kv_head = shape_.num_heads / shape_.num_kv_heads;
  const auto sum = [&](const std::vector<float>& heads, int64_t token, float* out) {
    for (int64_t i = 0; i < kv_dim(); ++i) {
      const int64_t head = i / shape_.head_dim * per_kv_head;
      const float* from =
          heads.data() + head * of_head + token * shape_.head_dim + i % shape_.head_dim;
      float total = 0;
      for (int64_t j = 0; j < per_kv_head; ++j) total += from[j * of_head];
      out[token * kv_dim() + i] = total;
    }
  };
  pool_.ParallelFor(tokens, pool_.Grain(tokens), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      sum(head_dk_, t, dk);
      sum(head_dv_, t, dv);
    }
  });
}

}  // namespace latentd
