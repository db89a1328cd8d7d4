#include "engine/model/decoder.h"

#include <algorithm>

#include "base/status_macros.h"
#include "kernels/cache_view.h"

namespace latentd {
namespace {

Product ProductOf(const LinearWeights& linear, float* out, bool accumulate = false) {
  return {.weight = linear.weight.get(),
          .bias = linear.bias.data(),
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
             .bias = norm.bias.data(),
             .out = out});
}

// The activations of that many rows that every layer has.
absl::Status Decoder::ReserveRows(int64_t rows) {
  Device& device = ops_.device();
  RETURN_IF_ERROR(hidden_.Reserve(device, rows * config_.hidden_dim));
  RETURN_IF_ERROR(normed_.Reserve(device, rows * config_.hidden_dim));
  RETURN_IF_ERROR(q_.Reserve(device, rows * config_.q_dim()));
  RETURN_IF_ERROR(attended_.Reserve(device, rows * config_.q_dim()));
  RETURN_IF_ERROR(up_.Reserve(device, rows * config_.mlp_dim));
  const bool gated = config_.activation == ActivationKind::kSiluGated;
  return gate_.Reserve(device, gated ? rows * config_.mlp_dim : 0);
}

absl::Status Decoder::Forward(const Batch& batch, const CacheLayout& layout, uint8_t* pool) {
  const int64_t rows = batch.num_tokens();
  RETURN_IF_ERROR(ReserveRows(rows));
  const std::vector<int32_t> first_step_page = StepPages(batch.cu_q_lens, batch.kv_lens);
  int64_t page_bytes = 0;
  for (int l = 0; l < config_.num_layers; ++l) {
    page_bytes = std::max(page_bytes, layout.layer(l).own_page_bytes());
  }
  RETURN_IF_ERROR(step_pages_.Reserve(ops_.device(), first_step_page.back() * page_bytes));
  ops_.BeginStep({.token_ids = batch.token_ids,
                  .positions = batch.positions,
                  .slots = batch.slots,
                  .cu_q_lens = batch.cu_q_lens,
                  .kv_lens = batch.kv_lens,
                  .block_table = batch.block_table,
                  .seat_of = batch.seats,
                  .first_step_page = first_step_page});
  const bool learned = config_.position == PositionKind::kLearned;
  ops_.Embed({.token_ids = batch.token_ids,
              .positions = batch.positions,
              .table = weights_.token_embedding.view,
              .position_table = learned ? &weights_.position_embedding.view : nullptr,
              .out = hidden_.data()});
  if (config_.embedding_norm) Norm(weights_.embedding_norm, rows, hidden_.data(), hidden_.data());
  for (int l = 0; l < config_.num_layers; ++l) {
    RETURN_IF_ERROR(Attend(l, batch, ViewOf(l, batch, layout, pool, first_step_page)));
    Mlp(l, rows);
  }
  return absl::OkStatus();
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
          .step_pages = step_pages_.data(),
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
absl::Status Decoder::ProjectSinks(int layer, absl::Span<const int32_t> positions) {
  const LayerWeights& w = weights_.layers[layer];
  sink_rows_.clear();
  sink_positions_.clear();
  for (size_t row = 0; row < positions.size(); ++row) {
    if (positions[row] >= w.attention->spec().cache.sinks) continue;
    sink_rows_.push_back(static_cast<int32_t>(row));
    sink_positions_.push_back(positions[row]);
  }
  const auto rows = static_cast<int64_t>(sink_rows_.size());
  if (rows == 0) return absl::OkStatus();
  Device& device = ops_.device();
  RETURN_IF_ERROR(sink_normed_.Reserve(device, rows * config_.hidden_dim));
  RETURN_IF_ERROR(sink_k_.Reserve(device, rows * config_.kv_dim()));
  RETURN_IF_ERROR(sink_v_.Reserve(device, rows * config_.kv_dim()));
  ops_.Gather({.in = normed_.data(),
               .dims = config_.hidden_dim,
               .rows = sink_rows_,
               .out = sink_normed_.data()});
  const Product products[] = {ProductOf(w.sink_k, sink_k_.data()),
                              ProductOf(w.sink_v, sink_v_.data())};
  ops_.Matmul(
      {.in = sink_normed_.data(), .rows = rows, .k = config_.hidden_dim, .products = products});
  PlaceHeads(w.k_norm, sink_positions_, config_.num_kv_heads, sink_k_.data());
  return absl::OkStatus();
}

// hidden += o(attention(q, cache)), after this step's keys and values were appended to the cache.
absl::Status Decoder::Attend(int layer, const Batch& batch, const CacheView& cache) {
  const LayerWeights& w = weights_.layers[layer];
  const int64_t rows = batch.num_tokens();
  Norm(w.attention_norm, rows, hidden_.data(), normed_.data());

  const int64_t k_dims = w.k.weight->rows(), v_dims = w.v.weight->rows();
  RETURN_IF_ERROR(k_.Reserve(ops_.device(), rows * k_dims));
  RETURN_IF_ERROR(v_.Reserve(ops_.device(), rows * v_dims));
  float *q = q_.data(), *k = k_.data(), *v = v_.data();
  const Product products[] = {ProductOf(w.q, q), ProductOf(w.k, k), ProductOf(w.v, v)};
  ops_.Matmul({.in = normed_.data(), .rows = rows, .k = config_.hidden_dim, .products = products});

  const AttentionPlan* plan = w.attention.get();
  PlaceHeads(w.q_norm, batch.positions, config_.num_heads, q);
  if (plan->spec().path == AttentionPath::kFull) {
    PlaceHeads(w.k_norm, batch.positions, config_.num_kv_heads, k);
  }
  if (w.sink_k.weight != nullptr) RETURN_IF_ERROR(ProjectSinks(layer, batch.positions));
  ops_.AppendCache({.plan = plan,
                    .cache = cache,
                    .k = k,
                    .k_stride = k_dims,
                    .v = v,
                    .v_stride = v_dims,
                    .sink_k = sink_k_.data(),
                    .sink_v = sink_v_.data()});
  ops_.Attention({.plan = plan, .cache = cache, .q = q, .out = attended_.data()});
  const Product output = ProductOf(w.o, hidden_.data(), /*accumulate=*/true);
  ops_.Matmul(
      {.in = attended_.data(), .rows = rows, .k = config_.q_dim(), .products = {&output, 1}});
  return absl::OkStatus();
}

// hidden += down(activation(up(norm(hidden)))).
void Decoder::Mlp(int layer, int64_t rows) {
  const LayerWeights& w = weights_.layers[layer];
  Norm(w.mlp_norm, rows, hidden_.data(), normed_.data());
  float* up = up_.data();
  Product products[2] = {ProductOf(w.up, up)};
  const bool gated = w.gate.weight != nullptr;
  if (gated) products[1] = ProductOf(w.gate, gate_.data());
  ops_.Matmul({.in = normed_.data(),
               .rows = rows,
               .k = config_.hidden_dim,
               .products = absl::MakeConstSpan(products, gated ? 2 : 1)});
  ops_.Activation({.kind = config_.activation,
                   .rows = rows,
                   .dims = config_.mlp_dim,
                   .gate = gated ? gate_.data() : up,
                   .up = gated ? up : nullptr,
                   .out = up});
  const Product output = ProductOf(w.down, hidden_.data(), /*accumulate=*/true);
  ops_.Matmul({.in = up, .rows = rows, .k = config_.mlp_dim, .products = {&output, 1}});
}

absl::StatusOr<const float*> Decoder::Logits(absl::Span<const int32_t> rows) {
  const auto count = static_cast<int64_t>(rows.size());
  RETURN_IF_ERROR(gathered_.Reserve(ops_.device(), count * config_.hidden_dim));
  RETURN_IF_ERROR(logits_.Reserve(ops_.device(), count * config_.vocab_size));
  float* gathered = gathered_.data();
  ops_.Gather({.in = hidden_.data(), .dims = config_.hidden_dim, .rows = rows, .out = gathered});
  Norm(weights_.final_norm, count, gathered, gathered);
  const Product product = ProductOf(weights_.lm_head, logits_.data());
  ops_.Matmul({.in = gathered, .rows = count, .k = config_.hidden_dim, .products = {&product, 1}});
  return logits_.data();
}

}  // namespace latentd
