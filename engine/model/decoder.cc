#include "engine/model/decoder.h"

#include <algorithm>

#include "kernels/cache_view.h"

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

void Decoder::Forward(const Batch& batch, const CacheLayout& layout, uint8_t* pool) {
  const int64_t rows = batch.num_tokens();
  Reserve(hidden_, rows * config_.hidden_dim);
  Reserve(normed_, rows * config_.hidden_dim);
  const bool learned = config_.position == PositionKind::kLearned;
  ops_.Embed({.token_ids = batch.token_ids,
              .positions = batch.positions,
              .table = weights_.token_embedding,
              .position_table = learned ? &weights_.position_embedding : nullptr,
              .out = hidden_.data()});
  if (config_.embedding_norm) Norm(weights_.embedding_norm, rows, hidden_.data(), hidden_.data());
  const std::vector<int32_t> first_step_page = StepPages(batch.cu_q_lens, batch.kv_lens);
  int64_t page_bytes = 0;
  for (int l = 0; l < config_.num_layers; ++l) {
    page_bytes = std::max(page_bytes, layout.layer(l).own_page_bytes());
  }
  const int64_t lines = (first_step_page.back() * page_bytes + 63) / 64;
  if (static_cast<int64_t>(step_pages_.size()) < lines) step_pages_.resize(lines);
  for (int l = 0; l < config_.num_layers; ++l) {
    Attend(l, batch, ViewOf(l, batch, layout, pool, first_step_page));
    Mlp(l, rows);
  }
}

CacheView Decoder::ViewOf(int layer, const Batch& batch, const CacheLayout& layout, uint8_t* pool,
                          absl::Span<const int32_t> first_step_page) {
  return {.layer = pool + layout.layer_base(layer),
          .block_bytes = layout.layer(layer).block_bytes(),
          .cu_q_lens = batch.cu_q_lens,
          .kv_lens = batch.kv_lens,
          .block_table = batch.block_table,
          .max_blocks = batch.max_blocks,
          .slots = batch.slots,
          .seats = pool + layout.sequence_base(layer),
          .seat_of = batch.seats,
          .step_pages = step_pages_.empty() ? nullptr : step_pages_.data()->bytes,
          .first_step_page = first_step_page};
}

// Norms (with QK-norm) and rotates (with RoPE) the heads of queries or keys in place.
void Decoder::PlaceHeads(const NormWeights& norm, absl::Span<const int32_t> positions, int heads,
                         float* x) {
  if (config_.qk_norm) {
    ops_.Norm({.kind = NormKind::kRms,
               .epsilon = config_.norm_epsilon,
               .rows = static_cast<int64_t>(positions.size()) * heads,
               .dims = config_.head_dim,
               .in = x,
               .weight = norm.weight.data(),
               .out = x});
  }
  if (weights_.rope == nullptr) return;
  ops_.Rope({.table = weights_.rope.get(),
             .positions = positions,
             .heads = heads,
             .head_dim = config_.head_dim,
             .x = x});
}

// The exact keys and values of the rows at positions below the layer's sinks, from their part of
// normed_.
void Decoder::ProjectSinks(int layer, absl::Span<const int32_t> positions) {
  const LayerWeights& w = weights_.layers[layer];
  const int64_t hidden_dim = config_.hidden_dim;
  sink_positions_.clear();
  for (size_t row = 0; row < positions.size(); ++row) {
    if (positions[row] >= w.attention->spec().cache.sinks) continue;
    const int64_t n = static_cast<int64_t>(sink_positions_.size());
    sink_positions_.push_back(positions[row]);
    Reserve(sink_normed_, (n + 1) * hidden_dim);
    std::copy_n(normed_.data() + static_cast<int64_t>(row) * hidden_dim, hidden_dim,
                sink_normed_.data() + n * hidden_dim);
  }
  const int64_t rows = static_cast<int64_t>(sink_positions_.size());
  if (rows == 0) return;
  const Product products[] = {ProductOf(w.sink_k, Reserve(sink_k_, rows * config_.kv_dim())),
                              ProductOf(w.sink_v, Reserve(sink_v_, rows * config_.kv_dim()))};
  ops_.Matmul({.in = sink_normed_.data(), .rows = rows, .k = hidden_dim, .products = products});
  PlaceHeads(w.k_norm, sink_positions_, config_.num_kv_heads, sink_k_.data());
}

// hidden += o(attention(q, cache)), after this step's keys and values were appended to the cache.
void Decoder::Attend(int layer, const Batch& batch, const CacheView& cache) {
  const LayerWeights& w = weights_.layers[layer];
  const int64_t rows = batch.num_tokens();
  Norm(w.attention_norm, rows, hidden_.data(), normed_.data());

  const int64_t k_dims = w.k.weight->rows(), v_dims = w.v.weight->rows();
  float* q = Reserve(q_, rows * config_.q_dim());
  float* k = Reserve(k_, rows * k_dims);
  float* v = Reserve(v_, rows * v_dims);
  const Product products[] = {ProductOf(w.q, q), ProductOf(w.k, k), ProductOf(w.v, v)};
  ops_.Matmul({.in = normed_.data(), .rows = rows, .k = config_.hidden_dim, .products = products});

  const AttentionPlan* plan = w.attention.get();
  PlaceHeads(w.q_norm, batch.positions, config_.num_heads, q);
  if (plan->spec().path == AttentionPath::kFull) {
    PlaceHeads(w.k_norm, batch.positions, config_.num_kv_heads, k);
  }
  if (w.sink_k.weight != nullptr) ProjectSinks(layer, batch.positions);
  ops_.AppendCache({.plan = plan,
                    .cache = cache,
                    .k = k,
                    .k_stride = k_dims,
                    .v = v,
                    .v_stride = v_dims,
                    .sink_k = sink_k_.data(),
                    .sink_v = sink_v_.data()});
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
