#include "kernels/cpu/matmul.h"

#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/activation_block.h"
#include "kernels/cpu/packed_weight.h"
#include "tests/kernels/cpu/random_weight.h"
#include "tests/kernels/cpu/vector_targets.h"
#include "tests/testing/random_values.h"

namespace latentd {
namespace {

std::unique_ptr<Weight> Pack(const RandomWeight& weight) {
  ThreadPool pool(1);
  WeightMemory memory;
  auto packed = PackedWeight::Create(weight.view(), memory, pool);
  EXPECT_TRUE(packed.ok()) << packed.status();
  return *std::move(packed);
}

// The input as the product sees it: quantised weights are multiplied with int8 activations.
std::vector<double> SeenInput(DType dtype, const std::vector<float>& in) {
  std::vector<double> seen(in.begin(), in.end());
  if (!IsQuantized(dtype)) return seen;
  std::vector<ActivationBlock> blocks(in.size() / 32);
  QuantizeActivations(in.data(), static_cast<int64_t>(in.size()), blocks.data());
  for (size_t i = 0; i < in.size(); ++i) {
    seen[i] = static_cast<double>(blocks[i / 32].scale) * blocks[i / 32].codes[i % 32];
  }
  return seen;
}

struct Shape {
  int64_t rows, k, n;
};

// Compares with sums in double over the stored weights. `tolerance` is a share of the sum of
// magnitudes.
void CheckProduct(DType dtype, const Shape& shape, int threads, bool bias, bool accumulate) {
  SCOPED_TRACE(testing::Message() << Info(dtype).name << " rows " << shape.rows << " k " << shape.k
                                  << " n " << shape.n << " threads " << threads);
  constexpr double kTolerance = 3e-6;
  const RandomWeight stored(dtype, shape.n, shape.k, 11);
  const std::unique_ptr<Weight> weight = Pack(stored);
  const std::vector<float> in = GaussianValues(shape.rows * shape.k, 12);
  const std::vector<float> biases = GaussianValues(shape.n, 13);
  const int64_t stride = shape.n + 3;
  const std::vector<float> before = GaussianValues(shape.rows * stride, 14);

  std::vector<float> out = before;
  const Product product{.weight = weight.get(),
                        .bias = bias ? biases.data() : nullptr,
                        .out = out.data(),
                        .out_stride = stride,
                        .accumulate = accumulate};
  ThreadPool pool(threads);
  Scratch scratch(threads);
  CpuMatmul(pool, scratch,
            {.in = in.data(), .rows = shape.rows, .k = shape.k, .products = {&product, 1}});

  const std::vector<double> seen = SeenInput(dtype, in);
  std::vector<float> row(shape.k);
  for (int64_t n = 0; n < shape.n; ++n) {
    DequantizeRow(stored.view(), n, absl::MakeSpan(row));
    for (int64_t t = 0; t < shape.rows; ++t) {
      double want = (bias ? biases[n] : 0.0) + (accumulate ? before[t * stride + n] : 0.0);
      double magnitude = 1.0;
      for (int64_t i = 0; i < shape.k; ++i) {
        want += row[i] * seen[t * shape.k + i];
        magnitude += std::abs(row[i] * seen[t * shape.k + i]);
      }
      ASSERT_NEAR(out[t * stride + n], want, kTolerance * magnitude) << t << ", " << n;
    }
  }
  for (int64_t t = 0; t < shape.rows; ++t) {
    for (int64_t i = shape.n; i < stride; ++i) {
      ASSERT_EQ(out[t * stride + i], before[t * stride + i]) << "written past the row";
    }
  }
}

TEST(CpuMatmul, IsTheProduct) {
  ForEachVectorTarget([] {
    for (DType dtype : kAllDTypes) {
      const int64_t k = Info(dtype).block_size == 256 ? 512 : 96;
      for (const Shape& shape : {Shape{1, k, 1}, Shape{2, k, 16}, Shape{3, k, 33}, Shape{15, k, 40},
                                 Shape{130, k, 20}}) {
        CheckProduct(dtype, shape, 2, shape.n > 16, shape.rows > 1);
      }
    }
  });
}

TEST(CpuMatmul, PlainWeightsTakeAnyNumberOfColumns) {
  ForEachVectorTarget([] {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (int64_t k : {1, 2, 3, 5, 30}) CheckProduct(dtype, {3, k, 17}, 1, true, false);
    }
  });
}

// Codes and activations at the ends of their ranges: a sum that saturates shows here.
TEST(CpuMatmul, ExtremeCodes) {
  ForEachVectorTarget([] {
    for (DType dtype : kAllDTypes) {
      if (!IsQuantized(dtype)) continue;
      const int64_t k = Info(dtype).block_size;
      for (int fill : {0xff, 0x80, 0x7f}) {
        std::vector<std::byte> bytes(16 * RowBytes(dtype, k), static_cast<std::byte>(fill));
        const TensorView view{.dtype = dtype, .rows = 16, .cols = k, .data = bytes.data()};
        for (int r = 0; r < 16; ++r) {  // fp16 1.0 where the scales are
          for (int offset : {0, 2, dtype == DType::kQ6_K ? 208 : 0}) {
            const bool is_scale = offset != 2 || dtype == DType::kQ4_1 || dtype == DType::kQ5_1 ||
                                  dtype == DType::kQ4_K || dtype == DType::kQ5_K;
            if (dtype == DType::kQ6_K && offset != 208) continue;
            if (!is_scale) continue;
            bytes[r * RowBytes(dtype, k) + offset] = std::byte{0x00};
            bytes[r * RowBytes(dtype, k) + offset + 1] = std::byte{0x3c};
          }
        }
        ThreadPool pool(1);
        Scratch scratch(1);
        WeightMemory memory;
        const auto weight = PackedWeight::Create(view, memory, pool);
        ASSERT_TRUE(weight.ok());
        for (float sign : {1.0f, -1.0f}) {
          const std::vector<float> in(k, 127.0f * sign);  // code 127 with a scale of 1
          std::vector<float> row(k), out(16);
          const Product product{.weight = weight->get(), .out = out.data(), .out_stride = 16};
          CpuMatmul(pool, scratch, {.in = in.data(), .rows = 1, .k = k, .products = {&product, 1}});
          DequantizeRow(view, 3, absl::MakeSpan(row));
          double want = 0, magnitude = 1;
          for (int64_t i = 0; i < k; ++i) {
            want += row[i] * in[i];
            magnitude += std::abs(row[i] * in[i]);
          }
          EXPECT_NEAR(out[3], want, 1e-6 * magnitude) << Info(dtype).name << " " << fill;
        }
      }
    }
  });
}

// The law: a row's bits depend on that row alone, whatever the batch, its place in it and the
// threads.
TEST(CpuMatmul, RowsDoNotDependOnTheBatch) {
  ForEachVectorTarget([] {
    constexpr int64_t kMaxRows = 150;
    for (DType dtype : kAllDTypes) {
      const int64_t k = Info(dtype).block_size == 256 ? 256 : 64;
      const RandomWeight first(dtype, 40, k, 21), second(dtype, 7, k, 22);
      const std::unique_ptr<Weight> weights[] = {Pack(first), Pack(second)};
      const std::vector<float> in = GaussianValues(kMaxRows * k, 23);
      const auto run = [&](int64_t begin, int64_t rows, int threads) {
        std::vector<float> out(rows * 47);
        const Product products[] = {
            {.weight = weights[0].get(), .out = out.data(), .out_stride = 47},
            {.weight = weights[1].get(), .out = out.data() + 40, .out_stride = 47}};
        ThreadPool pool(threads);
        Scratch scratch(threads);
        CpuMatmul(pool, scratch,
                  {.in = in.data() + begin * k, .rows = rows, .k = k, .products = products});
        return out;
      };
      const std::vector<float> whole = run(0, kMaxRows, 1);
      for (int threads : {1, 2, 3, 5}) {
        for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 129}) {
          for (int64_t begin : {int64_t{0}, int64_t{1}, kMaxRows - rows}) {
            const std::vector<float> part = run(begin, rows, threads);
            ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin * 47))
                << Info(dtype).name << " rows " << rows << " from " << begin << ", " << threads
                << " threads";
          }
        }
      }
    }
  });
}

TEST(CpuMatmul, NaNStaysInItsRow) {
  ForEachVectorTarget([] {
    for (DType dtype : kAllDTypes) {
      const int64_t k = Info(dtype).block_size == 256 ? 256 : 64;
      const RandomWeight stored(dtype, 20, k, 31);
      const std::unique_ptr<Weight> weight = Pack(stored);
      std::vector<float> in = GaussianValues(3 * k, 32);
      in[k + 40] = std::numeric_limits<float>::quiet_NaN();
      std::vector<float> out(3 * 20);
      const Product product{.weight = weight.get(), .out = out.data(), .out_stride = 20};
      ThreadPool pool(1);
      Scratch scratch(1);
      CpuMatmul(pool, scratch, {.in = in.data(), .rows = 3, .k = k, .products = {&product, 1}});
      for (int n = 0; n < 20; ++n) {
        EXPECT_FALSE(std::isnan(out[n])) << Info(dtype).name;
        EXPECT_TRUE(std::isnan(out[20 + n])) << Info(dtype).name;
        EXPECT_FALSE(std::isnan(out[40 + n])) << Info(dtype).name;
      }
    }
  });
}

}  // namespace
}  // namespace latentd
