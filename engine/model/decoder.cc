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

bool HasOneRowEach(const Batch& batch) {
  if (batch.num_tokens() == 0) return false;
  for (int i = 0; i <= batch.num_sequences(); ++i) {
    if (batch.cu_q_lens[i] != i) return false;
  }
  return true;
}

// Rows n, n + 1, n + 2, ...
bool AreNeighbours(absl::Span<const int32_t> rows) {
  for (size_t i = 1; i < rows.size(); ++i) {
    if (rows[i] != rows[i - 1] + 1) return false;
  }
  return !rows.empty();
}

}  // namespace

NormParams Decoder::NormOf(const NormWeights& norm, int64_t rows, const float* in,
                           float* out) const {
  return {.kind = config_.norm,
          .epsilon = config_.norm_epsilon,
          .rows = rows,
          .dims = config_.hidden_dim,
          .in = in,
          .weight = norm.weight.data(),
          .bias = norm.bias.data(),
          .out = out};
}

int Decoder::CountSinkRows(const Batch& batch) const {
  int sinks = 0;
  for (const LayerWeights& w : weights_.layers) {
    sinks = std::max(sinks, w.attention->spec().cache.sinks);
  }
  return static_cast<int>(
      std::ranges::count_if(batch.positions, [&](int32_t position) { return position < sinks; }));
}

absl::Status Decoder::Reserve(int64_t rows, int64_t sink_rows, int64_t step_pages,
                              const CacheLayout& layout) {
  int64_t k_dims = 0, v_dims = 0, page_bytes = 0;
  for (int l = 0; l < config_.num_layers; ++l) {
    k_dims = std::max(k_dims, weights_.layers[l].k.weight->rows());
    v_dims = std::max(v_dims, weights_.layers[l].v.weight->rows());
    page_bytes = std::max(page_bytes, layout.layer(l).own_page_bytes());
  }
  Device& device = ops_.device();
  RETURN_IF_ERROR(hidden_.Reserve(device, rows * config_.hidden_dim));
  RETURN_IF_ERROR(normed_.Reserve(device, rows * config_.hidden_dim));
  RETURN_IF_ERROR(q_.Reserve(device, rows * config_.q_dim()));
  RETURN_IF_ERROR(k_.Reserve(device, rows * k_dims));
  RETURN_IF_ERROR(v_.Reserve(device, rows * v_dims));
  RETURN_IF_ERROR(attended_.Reserve(device, rows * config_.q_dim()));
  RETURN_IF_ERROR(up_.Reserve(device, rows * config_.mlp_dim));
  const bool gated = config_.activation == ActivationKind::kSiluGated;
  RETURN_IF_ERROR(gate_.Reserve(device, gated ? rows * config_.mlp_dim : 0));
  RETURN_IF_ERROR(sink_hidden_.Reserve(device, sink_rows * config_.hidden_dim));
  RETURN_IF_ERROR(sink_k_.Reserve(device, sink_rows * config_.kv_dim()));
  RETURN_IF_ERROR(sink_v_.Reserve(device, sink_rows * config_.kv_dim()));
  return step_pages_.Reserve(device, step_pages * page_bytes);
}

absl::Status Decoder::Forward(const Batch& batch, const CacheLayout& layout, uint8_t* pool) {
  const std::vector<int32_t> first_step_page = StepPages(batch.cu_q_lens, batch.kv_lens);
  const int sink_rows = CountSinkRows(batch);
  RETURN_IF_ERROR(Reserve(batch.num_tokens(), sink_rows, first_step_page.back(), layout));
  ops_.BeginStep({.token_ids = batch.token_ids,
                  .positions = batch.positions,
                  .slots = batch.slots,
                  .cu_q_lens = batch.cu_q_lens,
                  .kv_lens = batch.kv_lens,
                  .block_table = batch.block_table,
                  .seat_of = batch.seats,
                  .first_step_page = first_step_page});
  const auto layers = [&] {
    Embed(batch);
    for (int l = 0; l < config_.num_layers; ++l) {
      Attend(l, batch, ViewOf(l, batch, layout, pool, first_step_page));
      Mlp(l, batch.num_tokens());
    }
  };
  // The rows at sinks' positions are others in every step.
  if (sink_rows == 0 && HasOneRowEach(batch)) {
    ops_.Replay(pool, layers);
  } else {
    layers();
  }
  return absl::OkStatus();
}

void Decoder::Embed(const Batch& batch) {
  const bool learned = config_.position == PositionKind::kLearned;
  float* hidden = hidden_.data();
  ops_.Embed({.token_ids = batch.token_ids,
              .positions = batch.positions,
              .table = weights_.token_embedding.view,
              .position_table = learned ? &weights_.position_embedding.view : nullptr,
              .out = hidden});
  if (config_.embedding_norm) {
    ops_.Norm(NormOf(weights_.embedding_norm, batch.num_tokens(), hidden, hidden));
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

// The exact keys and values of the rows at positions below the layer's sinks.
void Decoder::ProjectSinks(int layer, absl::Span<const int32_t> positions) {
  const LayerWeights& w = weights_.layers[layer];
  sink_rows_.clear();
  sink_positions_.clear();
  for (size_t row = 0; row < positions.size(); ++row) {
    if (positions[row] >= w.attention->spec().cache.sinks) continue;
    sink_rows_.push_back(static_cast<int32_t>(row));
    sink_positions_.push_back(positions[row]);
  }
  const auto rows = static_cast<int64_t>(sink_rows_.size());
  if (rows == 0) return;
  float* hidden = sink_hidden_.data();
  ops_.Gather(
      {.in = hidden_.data(), .dims = config_.hidden_dim, .rows = sink_rows_, .out = hidden});
  const NormParams norm = NormOf(w.attention_norm, rows, hidden, hidden);
  const Product products[] = {ProductOf(w.sink_k, sink_k_.data()),
                              ProductOf(w.sink_v, sink_v_.data())};
  ops_.Matmul(
      {.in = hidden, .rows = rows, .k = config_.hidden_dim, .products = products, .norm = &norm});
  PlaceHeads(w.k_norm, sink_positions_, config_.num_kv_heads, sink_k_.data());
}

// hidden += o(attention(q, cache)), after this step's keys and values were appended to the cache.
void Decoder::Attend(int layer, const Batch& batch, const CacheView& cache) {
  const LayerWeights& w = weights_.layers[layer];
  const int64_t rows = batch.num_tokens();
  const NormParams norm = NormOf(w.attention_norm, rows, hidden_.data(), normed_.data());
  const int64_t k_dims = w.k.weight->rows(), v_dims = w.v.weight->rows();
  float *q = q_.data(), *k = k_.data(), *v = v_.data();
  const Product products[] = {ProductOf(w.q, q), ProductOf(w.k, k), ProductOf(w.v, v)};
  ops_.Matmul({.in = normed_.data(),
               .rows = rows,
               .k = config_.hidden_dim,
               .products = products,
               .norm = &norm});

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
  ops_.Attention({.plan = plan, .cache = cache, .q = q, .out = attended_.data()});
  const Product output = ProductOf(w.o, hidden_.data(), /*accumulate=*/true);
  ops_.Matmul(
      {.in = attended_.data(), .rows = rows, .k = config_.q_dim(), .products = {&output, 1}});
}

// hidden += down(activation(up(norm(hidden)))).
void Decoder::Mlp(int layer, int64_t rows) {
  const LayerWeights& w = weights_.layers[layer];
  const NormParams norm = NormOf(w.mlp_norm, rows, hidden_.data(), normed_.data());
  float* up = up_.data();
  Product products[2] = {ProductOf(w.up, up)};
  const bool gated = w.gate.weight != nullptr;
  if (gated) products[1] = ProductOf(w.gate, gate_.data());
  const ActivationParams activation{.kind = config_.activation,
                                    .rows = rows,
                                    .dims = config_.mlp_dim,
                                    .gate = gated ? gate_.data() : up,
                                    .up = gated ? up : nullptr,
                                    .out = up};
  ops_.Matmul({.in = normed_.data(),
               .rows = rows,
               .k = config_.hidden_dim,
               .products = absl::MakeConstSpan(products, gated ? 2 : 1),
               .norm = &norm,
               .activation = &activation});
  const Product output = ProductOf(w.down, hidden_.data(), /*accumulate=*/true);
  ops_.Matmul({.in = up, .rows = rows, .k = config_.mlp_dim, .products = {&output, 1}});
}

absl::StatusOr<const float*> Decoder::Logits(absl::Span<const int32_t> rows) {
  const auto count = static_cast<int64_t>(rows.size());
  RETURN_IF_ERROR(gathered_.Reserve(ops_.device(), count * config_.hidden_dim));
  RETURN_IF_ERROR(logits_.Reserve(ops_.device(), count * config_.vocab_size));
  float* gathered = gathered_.data();
  const float* in = gathered;
  if (AreNeighbours(rows)) {
    in = hidden_.data() + rows.front() * int64_t{config_.hidden_dim};
  } else {
    ops_.Gather({.in = hidden_.data(), .dims = config_.hidden_dim, .rows = rows, .out = gathered});
  }
  const NormParams norm = NormOf(weights_.final_norm, count, in, gathered);
  const Product product = ProductOf(weights_.lm_head, logits_.data());
  ops_.Matmul({.in = gathered,
               .rows = count,
               .k = config_.hidden_dim,
               .products = {&product, 1},
               .norm = &norm});
  return logits_.data();
}

}  // namespace latentd
