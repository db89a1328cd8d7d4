#include "kernels/cpu/matmul.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/activation_block.h"
#include "kernels/cpu/matmul_panel.h"
#include "kernels/cpu/packed_weight.h"

namespace latentd {
namespace {

// Rows that stay in the cache while panel after panel passes over them.
constexpr int64_t kRowBlock = 128;

const PackedWeight& WeightOf(const Product& product) {
  return static_cast<const PackedWeight&>(*product.weight);
}

// Adds a panel's tile [rows][16] to where it belongs: (tile + bias) + out.
void StoreTile(const Product& product, int64_t first_row, int64_t rows, int64_t panel,
               const float* tile) {
  const int64_t first_col = panel * kPanelRows;
  const int cols =
      static_cast<int>(std::min<int64_t>(kPanelRows, product.weight->rows() - first_col));
  float padded_bias[kPanelRows] = {};
  if (product.bias != nullptr) std::copy_n(product.bias + first_col, cols, padded_bias);
  for (int64_t r = 0; r < rows; ++r) {
    float* out = product.out + (first_row + r) * product.out_stride + first_col;
    const float* in = tile + r * kPanelRows;
    if (product.bias != nullptr && product.accumulate) {
      for (int c = 0; c < cols; ++c) out[c] = (in[c] + padded_bias[c]) + out[c];
    } else if (product.bias != nullptr) {
      for (int c = 0; c < cols; ++c) out[c] = in[c] + padded_bias[c];
    } else if (product.accumulate) {
      for (int c = 0; c < cols; ++c) out[c] = in[c] + out[c];
    } else {
      std::copy_n(in, cols, out);
    }
  }
}

// The input as blocks of int8, [rows][k / 32].
const ActivationBlock* QuantizeInput(ThreadPool& pool, Scratch& scratch, const MatmulParams& p) {
  const int64_t blocks = p.k / kBlockValues;
  ActivationBlock* out = scratch.Shared<ActivationBlock>(p.rows * blocks);
  constexpr int64_t kRowsPerChunk = 8;  // fewer are not worth a second thread
  pool.ParallelFor(p.rows, kRowsPerChunk, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      QuantizeActivations(p.in + r * p.k, p.k, out + r * blocks);
    }
  });
  return out;
}

}  // namespace

void CpuMatmul(ThreadPool& pool, Scratch& scratch, const MatmulParams& p) {
  if (p.rows == 0) return;
  bool any_quantized = false;
  int64_t panels = 0;
  for (const Product& product : p.products) {
    LATENTD_CHECK(product.weight->cols() == p.k);
    any_quantized |= IsQuantized(product.weight->dtype());
    panels += WeightOf(product).panels();
  }
  const ActivationBlock* blocks = any_quantized ? QuantizeInput(pool, scratch, p) : nullptr;

  const int64_t row_blocks = (p.rows + kRowBlock - 1) / kRowBlock;
  const int64_t items = panels * row_blocks;
  pool.ParallelFor(items, pool.Grain(items), [&](int64_t begin, int64_t end, int) {
    alignas(64) float tile[kRowBlock * kPanelRows];
    for (int64_t item = begin; item < end; ++item) {
      const int64_t first_row = item / panels * kRowBlock;
      const int64_t rows = std::min(kRowBlock, p.rows - first_row);
      int64_t panel = item % panels;
      const Product* product = p.products.data();
      for (; panel >= WeightOf(*product).panels(); ++product) panel -= WeightOf(*product).panels();
      const PackedWeight& weight = WeightOf(*product);
      if (IsQuantized(weight.dtype())) {
        const ActivationBlock* in = blocks + first_row * (p.k / kBlockValues);
        QuantizedPanel(weight, panel, in, rows, tile);
      } else {
        PlainPanel(weight, panel, p.in + first_row * p.k, rows, tile);
      }
      StoreTile(*product, first_row, rows, panel, tile);
    }
  });
}

}  // namespace latentd
