#include "kernels/cpu/matmul.h"

#include <algorithm>

#include "base/check.h"
#include "kernels/cpu/activation_block.h"
#include "kernels/cpu/matmul_panel.h"
#include "kernels/cpu/packed_weight.h"

namespace latentd {
namespace {

// A work item is a tile of the output: input rows that stay in the cache while panel after panel
// passes over them, and as many panels as make a row of the tile some cache lines long.
constexpr int64_t kTileRows = 64;
constexpr int64_t kTilePanels = 4;
constexpr int64_t kTileCols = kTilePanels * kPanelRows;

const PackedWeight& WeightOf(const Product& product) {
  return static_cast<const PackedWeight&>(*product.weight);
}

int64_t TileColumns(const Product& product) {
  return (WeightOf(product).panels() + kTilePanels - 1) / kTilePanels;
}

// Puts the tile [rows][kTileCols], which begins at (first_row, first_col), where it belongs: (tile
// + bias) + out.
void StoreTile(const Product& product, int64_t first_row, int64_t rows, int64_t first_col,
               const float* tile) {
  const int cols =
      static_cast<int>(std::min<int64_t>(kTileCols, product.weight->rows() - first_col));
  float bias[kTileCols];
  if (product.bias != nullptr) std::copy_n(product.bias + first_col, cols, bias);
  for (int64_t r = 0; r < rows; ++r) {
    float* out = product.out + (first_row + r) * product.out_stride + first_col;
    const float* in = tile + r * kTileCols;
    if (product.bias != nullptr && product.accumulate) {
      for (int c = 0; c < cols; ++c) out[c] = (in[c] + bias[c]) + out[c];
    } else if (product.bias != nullptr) {
      for (int c = 0; c < cols; ++c) out[c] = in[c] + bias[c];
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
  int64_t columns = 0;
  for (const Product& product : p.products) {
    LATENTD_CHECK(product.weight->cols() == p.k && product.out_stride >= product.weight->rows());
    any_quantized |= IsQuantized(product.weight->dtype());
    columns += TileColumns(product);
  }
  const ActivationBlock* blocks = any_quantized ? QuantizeInput(pool, scratch, p) : nullptr;

  const int64_t items = columns * ((p.rows + kTileRows - 1) / kTileRows);
  pool.ParallelFor(items, pool.Grain(items), [&](int64_t begin, int64_t end, int) {
    alignas(64) float tile[kTileRows * kTileCols];
    for (int64_t item = begin; item < end; ++item) {
      const int64_t first_row = item / columns * kTileRows;
      const int64_t rows = std::min(kTileRows, p.rows - first_row);
      int64_t column = item % columns;
      const Product* product = p.products.data();
      for (; column >= TileColumns(*product); ++product) column -= TileColumns(*product);
      const PackedWeight& weight = WeightOf(*product);
      const int64_t first_panel = column * kTilePanels;
      const int64_t panels = std::min(kTilePanels, weight.panels() - first_panel);
      for (int64_t i = 0; i < panels; ++i) {
        float* out = tile + i * kPanelRows;
        if (IsQuantized(weight.dtype())) {
          const ActivationBlock* in = blocks + first_row * (p.k / kBlockValues);
          QuantizedPanel(weight, first_panel + i, in, rows, out, kTileCols);
        } else {
          PlainPanel(weight, first_panel + i, p.in + first_row * p.k, rows, out, kTileCols);
        }
      }
      StoreTile(*product, first_row, rows, first_panel * kPanelRows, tile);
    }
  });
}

}  // namespace latentd
