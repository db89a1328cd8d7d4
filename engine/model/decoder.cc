#include "engine/model/decoder.h"

#include <algorithm>

namespace latentd {
namespace {

// A buffer of at least `size` values; it never shrinks, so that a step allocates nothing once the
// largest was seen.
float* Reserve(std::vector<float>& buffer, int64_t size) {
  if (static_cast<int64_t>(buffer.size()) < size) buffer.resize(size);
  return buffer.data();
}

Product ProductOf(const LinearWeights& linear, float* out, bool accumulate = false) {
  return {.weight = linear.weight.get(),
          .bias = linear.bias.empty() ? nullptr : linear.bias.data(),
          .out = out,
          .out_stride = linear.weight->rows(),
          .accumulate = accumulate};
}

}  // namespace

void Decoder::Norm(const NormWeights& norm, int64_t rows, const float* in, float* out) {
  ops_.Norm({.kind = config_.norm,
             .epsilon = config_.norm_epsilon,
             .rows = rows,
             .dims = config_.hidden_dim,
             .in = in,
             .weight = norm.weight.data(),
             .bias = norm.bias.empty() ? nullptr : norm.bias.data(),
             .out = out});
}

void Decoder::Forward(const Batch& batch, const CacheLayout& layout, uint8_t* pool,
                      const AttentionInputObserver& observer) {
  const int64_t rows = batch.num_tokens();
  Reserve(hidden_, rows * config_.hidden_dim);
  Reserve(normed_, rows * config_.hidden_dim);
  const bool learned = config_.position == PositionKind::kLearned;
  ops_.Embed({.token_ids = batch.token_ids,
              .positions = batch.positions,
              .table = weights_.token_embedding,
              .position_table = learned ? &weights_.position_embedding : nullptr,
              .out = hidden_.data()});
  for (int l = 0; l < config_.num_layers; ++l) {
    const CacheView cache{.layer = pool + layout.layer_base(l),
                          .block_bytes = layout.layer(l).block_bytes(),
                          .cu_q_lens = batch.cu_q_lens,
                          .kv_lens = batch.kv_lens,
                          .block_table = batch.block_table,
                          .max_blocks = batch.max_blocks,
                          .slots = batch.slots};
    Attend(l, batch, cache, observer);
    Mlp(l, rows);
  }
}

// hidden += o(attention(q, cache)), after this step's keys and values were appended to the cache.
void Decoder::Attend(int layer, const Batch& batch, const CacheView& cache,
                     const AttentionInputObserver& observer) {
  const LayerWeights& w = weights_.layers[layer];
  const int64_t rows = batch.num_tokens();
  Norm(w.attention_norm, rows, hidden_.data(), normed_.data());
  if (observer) observer(layer, normed_.data(), rows);

  const int64_t k_dims = w.k.weight->rows(), v_dims = w.v.weight->rows();
  float* q = Reserve(q_, rows * config_.q_dim());
  float* k = Reserve(k_, rows * k_dims);
  float* v = Reserve(v_, rows * v_dims);
  const Product products[] = {ProductOf(w.q, q), ProductOf(w.k, k), ProductOf(w.v, v)};
  ops_.Matmul({.in = normed_.data(), .rows = rows, .k = config_.hidden_dim, .products = products});

  const AttentionPlan* plan = w.attention.get();
  if (weights_.rope != nullptr) {
    RopeParams rope{.table = weights_.rope.get(),
                    .positions = batch.positions,
                    .heads = config_.num_heads,
                    .head_dim = config_.head_dim,
                    .x = q};
    ops_.Rope(rope);
    if (plan->spec().path == AttentionPath::kFull) {
      rope.heads = config_.num_kv_heads;
      rope.x = k;
      ops_.Rope(rope);
    }
  }
  ops_.AppendCache(
      {.plan = plan, .cache = cache, .k = k, .k_stride = k_dims, .v = v, .v_stride = v_dims});
  float* attended = Reserve(attended_, rows * config_.q_dim());
  ops_.Attention({.plan = plan, .cache = cache, .q = q, .out = attended});
  const Product output = ProductOf(w.o, hidden_.data(), /*accumulate=*/true);
  ops_.Matmul({.in = attended, .rows = rows, .k = config_.q_dim(), .products = {&output, 1}});
}

// hidden += down(activation(up(norm(hidden)))).
void Decoder::Mlp(int layer, int64_t rows) {
  const LayerWeights& w = weights_.layers[layer];
  Norm(w.mlp_norm, rows, hidden_.data(), normed_.data());
  float* up = Reserve(up_, rows * config_.mlp_dim);
  Product products[2] = {ProductOf(w.up, up)};
  const bool gated = w.gate.weight != nullptr;
  float* gate = gated ? Reserve(gate_, rows * config_.mlp_dim) : nullptr;
  if (gated) products[1] = ProductOf(w.gate, gate);
  ops_.Matmul({.in = normed_.data(),
               .rows = rows,
               .k = config_.hidden_dim,
               .products = absl::MakeConstSpan(products, gated ? 2 : 1)});
  ops_.Activation({.kind = config_.activation,
                   .rows = rows,
                   .dims = config_.mlp_dim,
                   .gate = gated ? gate : up,
                   .up = gated ? up : nullptr,
                   .out = up});
  const Product output = ProductOf(w.down, hidden_.data(), /*accumulate=*/true);
  ops_.Matmul({.in = up, .rows = rows, .k = config_.mlp_dim, .products = {&output, 1}});
}

const float* Decoder::Logits(absl::Span<const int32_t> rows) {
  const int64_t count = static_cast<int64_t>(rows.size());
  const int64_t hidden_dim = config_.hidden_dim;
  float* gathered = Reserve(gathered_, count * hidden_dim);
  for (int64_t i = 0; i < count; ++i) {
    std::copy_n(hidden_.data() + rows[i] * hidden_dim, hidden_dim, gathered + i * hidden_dim);
  }
  Norm(weights_.final_norm, count, gathered, gathered);
  float* logits = Reserve(logits_, count * config_.vocab_size);
  const Product product = ProductOf(weights_.lm_head, logits);
  ops_.Matmul({.in = gathered, .rows = count, .k = hidden_dim, .products = {&product, 1}});
  return logits;
}

}  // namespace latentd
