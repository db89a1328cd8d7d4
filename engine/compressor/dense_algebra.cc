#include "engine/compressor/dense_algebra.h"

#include <cblas.h>

#include <algorithm>
#include <optional>
#include <thread>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"
#include "engine/compressor/float_rows.h"

namespace latentd {
namespace {

// Large enough for the library to reach its speed, small enough to keep some cores busy with one
// window.
constexpr int64_t kTileRows = 512, kTileCols = 1024;

int64_t Tiles(int64_t extent, int64_t tile) { return (extent + tile - 1) / tile; }

// Calls body(row, rows, col, cols) for every tile of a [rows, cols] result.
template <typename Body>
void ForTiles(ThreadPool& pool, int64_t rows, int64_t cols, const Body& body) {
  const int64_t across = Tiles(cols, kTileCols);
  const int64_t width = Tiles(Tiles(cols, across), 16) * 16;  // even shares
  pool.ParallelFor(Tiles(rows, kTileRows) * across, 1, [&](int64_t begin, int64_t end, int) {
    for (int64_t tile = begin; tile < end; ++tile) {
      const int64_t row = tile / across * kTileRows, col = tile % across * width;
      if (col >= cols) continue;
      body(row, std::min(kTileRows, rows - row), col, std::min(width, cols - col));
    }
  });
}

RowNorm RowNormOf(const DenseNorm& norm) {
  return {.kind = norm.kind,
          .epsilon = norm.epsilon,
          .dims = static_cast<int64_t>(norm.weight.size()),
          .weight = norm.weight.data(),
          .bias = norm.bias.empty() ? nullptr : norm.bias.data()};
}

}  // namespace

DenseAlgebra::DenseAlgebra(int threads)
    : library_threads_(openblas_get_num_threads()),
      pool_(threads > 0 ? threads
                        : std::max(1, static_cast<int>(std::thread::hardware_concurrency()))) {
  openblas_set_num_threads(1);
}

DenseAlgebra::~DenseAlgebra() { openblas_set_num_threads(library_threads_); }

void DenseAlgebra::Dequantize(const TensorView& view, std::vector<float>* out) {
  out->resize(view.rows * view.cols);
  pool_.ParallelFor(view.rows, pool_.Grain(view.rows), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      DequantizeRow(view, r, absl::MakeSpan(*out).subspan(r * view.cols, view.cols));
    }
  });
}

absl::Status DenseAlgebra::Load(const Checkpoint& checkpoint, const std::string& name,
                                DenseLinear* linear) {
  const std::string weight_name = absl::StrCat(name, ".weight");
  const std::optional<TensorView> weight = checkpoint.Find(weight_name);
  if (!weight.has_value()) {
    return absl::NotFoundError(absl::StrCat("the model has no tensor ", weight_name));
  }
  linear->out = weight->rows;
  linear->in = weight->cols;
  Dequantize(*weight, &linear->weight);
  const std::optional<TensorView> bias = checkpoint.Find(absl::StrCat(name, ".bias"));
  linear->bias.clear();
  if (bias.has_value()) Dequantize(*bias, &linear->bias);
  return absl::OkStatus();
}

absl::StatusOr<DenseNorm> DenseAlgebra::LoadNorm(const Checkpoint& checkpoint,
                                                 const std::string& name) {
  DenseLinear linear;
  RETURN_IF_ERROR(Load(checkpoint, name, &linear));
  return DenseNorm{.kind = checkpoint.config().norm,
                   .epsilon = checkpoint.config().norm_epsilon,
                   .weight = std::move(linear.weight),
                   .bias = std::move(linear.bias)};
}

void DenseAlgebra::Product(const float* x, int64_t rows, const DenseLinear& linear, bool accumulate,
                           float* out) {
  ForTiles(pool_, rows, linear.out, [&](int64_t row, int64_t m, int64_t col, int64_t n) {
    float* tile = out + row * linear.out + col;
    if (!linear.bias.empty()) {
      for (int64_t r = 0; r < m; ++r) {
        float* to = tile + r * linear.out;
        for (int64_t c = 0; c < n; ++c) {
          to[c] = (accumulate ? to[c] : 0.0f) + linear.bias[col + c];
        }
      }
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, linear.in, 1.0f, x + row * linear.in,
                linear.in, linear.weight.data() + col * linear.in, linear.in,
                accumulate || !linear.bias.empty() ? 1.0f : 0.0f, tile, linear.out);
  });
}

void DenseAlgebra::ProductBackward(const float* dout, int64_t rows, const DenseLinear& linear,
                                   bool accumulate, float* dx) {
  ForTiles(pool_, rows, linear.in, [&](int64_t row, int64_t m, int64_t col, int64_t n) {
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, linear.out, 1.0f,
                dout + row * linear.out, linear.out, linear.weight.data() + col, linear.in,
                accumulate ? 1.0f : 0.0f, dx + row * linear.in + col, linear.in);
  });
}

void DenseAlgebra::Norm(const DenseNorm& norm, const float* in, int64_t rows, float* out) {
  const RowNorm row = RowNormOf(norm);
  pool_.ParallelFor(rows, pool_.Grain(rows), [&](int64_t begin, int64_t end, int) {
    NormRows(row, in + begin * row.dims, end - begin, out + begin * row.dims);
  });
}

void DenseAlgebra::NormBackward(const DenseNorm& norm, const float* in, const float* dout,
                                int64_t rows, bool accumulate, float* dx) {
  const RowNorm row = RowNormOf(norm);
  pool_.ParallelFor(rows, pool_.Grain(rows), [&](int64_t begin, int64_t end, int) {
    const int64_t first = begin * row.dims;
    NormRowsBackward(row, in + first, dout + first, end - begin, accumulate, dx + first);
  });
}

}  // namespace latentd
