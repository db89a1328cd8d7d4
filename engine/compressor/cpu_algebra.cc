#include <cblas.h>

#include <algorithm>

#include "base/status_macros.h"
#include "engine/compressor/dense_algebra.h"

namespace latentd {
namespace {

// Large enough for the library to reach its speed, small enough to keep some cores busy with one
// window.
constexpr int64_t kTileRows = 512, kTileCols = 1024;

int64_t Tiles(int64_t extent, int64_t tile) { return (extent + tile - 1) / tile; }

// Products are cut into tiles of fixed size, each computed by one thread.
class CpuAlgebra final : public DenseAlgebra {
 public:
  explicit CpuAlgebra(int threads) : DenseAlgebra(threads), memory_(CreateHostDevice()) {}

  absl::Status LoadWeight(const TensorView& view, DenseLinear* linear) override {
    RETURN_IF_ERROR(linear->memory.Reserve(*memory_, view.rows * view.cols));
    pool().ParallelFor(view.rows, pool().Grain(view.rows), [&](int64_t begin, int64_t end, int) {
      for (int64_t r = begin; r < end; ++r) {
        DequantizeRow(view, r, absl::MakeSpan(linear->memory.data() + r * view.cols, view.cols));
      }
    });
    linear->out = view.rows;
    linear->in = view.cols;
    linear->weight = linear->memory.data();
    return absl::OkStatus();
  }

  void Product(const float* x, int64_t rows, const DenseLinear& linear, bool accumulate,
               float* out) override {
    ForTiles(rows, linear.out, [&](int64_t row, int64_t m, int64_t col, int64_t n) {
      float* tile = out + row * linear.out + col;
      if (!linear.bias.empty()) {
        for (int64_t r = 0; r < m; ++r) {
          float* to = tile + r * linear.out;
          for (int64_t c = 0; c < n; ++c) {
            to[c] = (accumulate ? to[c] : 0.0f) + linear.bias[col + c];
          }
        }
      }
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, m, n, linear.in, 1.0f,
                  x + row * linear.in, linear.in, linear.weight + col * linear.in, linear.in,
                  accumulate || !linear.bias.empty() ? 1.0f : 0.0f, tile, linear.out);
    });
  }

  void ProductBackward(const float* dout, int64_t rows, const DenseLinear& linear, bool accumulate,
                       float* dx) override {
    ForTiles(rows, linear.in, [&](int64_t row, int64_t m, int64_t col, int64_t n) {
      cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, m, n, linear.out, 1.0f,
                  dout + row * linear.out, linear.out, linear.weight + col, linear.in,
                  accumulate ? 1.0f : 0.0f, dx + row * linear.in + col, linear.in);
    });
  }

  void WeightGradient(const float* dout, int64_t out, const float* x, int64_t in, int64_t rows,
                      float* gradient) override {
    ForTiles(out, in, [&](int64_t row, int64_t m, int64_t col, int64_t n) {
      cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, m, n, rows, 1.0f, dout + row, out,
                  x + col, in, 0.0f, gradient + row * in + col, in);
    });
  }

  void AddMoments(absl::Span<const Moment> moments) override {
    pool().ParallelFor(std::ssize(moments), 1, [&](int64_t begin, int64_t end, int) {
      for (const Moment& moment : moments.subspan(begin, end - begin)) {
        AddMoment(moment.x, static_cast<int>(moment.rows), moment.sum);
      }
    });
  }

 private:
  // Calls body(row, rows, col, cols) for every tile of a [rows, cols] result.
  template <typename Body>
  void ForTiles(int64_t rows, int64_t cols, const Body& body) {
    const int64_t across = Tiles(cols, kTileCols);
    const int64_t width = Tiles(Tiles(cols, across), 16) * 16;  // even shares
    pool().ParallelFor(Tiles(rows, kTileRows) * across, 1, [&](int64_t begin, int64_t end, int) {
      for (int64_t tile = begin; tile < end; ++tile) {
        const int64_t row = tile / across * kTileRows, col = tile % across * width;
        if (col >= cols) continue;
        body(row, std::min(kTileRows, rows - row), col, std::min(width, cols - col));
      }
    });
  }

  const std::unique_ptr<Device> memory_;
};

}  // namespace

std::unique_ptr<DenseAlgebra> CreateCpuAlgebra(int threads) {
  return std::make_unique<CpuAlgebra>(threads);
}

}  // namespace latentd
