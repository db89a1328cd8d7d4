#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "tests/testing/device_values.h"
#include "tests/testing/random_values.h"
#include "tests/testing/random_weight.h"
#include "tests/testing/tested_backend.h"

namespace latentd {
namespace {

std::unique_ptr<Weight> Prepare(Ops& ops, const RandomWeight& stored) {
  auto weight = ops.PrepareWeight(stored.view());
  EXPECT_TRUE(weight.ok()) << weight.status();
  return *std::move(weight);
}

// `before`, the rows [rows, stride], with the products of in's rows one behind the other. `product`
// is what they share.
std::vector<float> Multiplied(Ops& ops, const std::vector<const Weight*>& weights,
                              const std::vector<float>& in, int64_t rows,
                              const std::vector<float>& before,
                              const std::vector<float>& biases = {}, bool accumulate = false) {
  const DeviceArray<float> device_in = ToDevice(ops, in), device_biases = ToDevice(ops, biases),
                           out = ToDevice(ops, before);
  std::vector<Product> products;
  float* next = out.data();
  for (const Weight* weight : weights) {
    products.push_back({.weight = weight,
                        .bias = device_biases.data(),
                        .out = next,
                        .out_stride = std::ssize(before) / rows,
                        .accumulate = accumulate});
    next += weight->rows();
  }
  ops.BeginStep({});
  ops.Matmul({.in = device_in.data(), .rows = rows, .k = weights[0]->cols(), .products = products});
  return ToHost(ops, out);
}

struct Shape {
  int64_t rows, k, n;
};

// Compares with sums in double over the stored weights.
void CheckProduct(Ops& ops, DType dtype, const Shape& shape, bool bias, bool accumulate) {
  SCOPED_TRACE(testing::Message() << Info(dtype).name << " rows " << shape.rows << " k " << shape.k
                                  << " n " << shape.n);
  constexpr double kTolerance = 3e-6;  // a share of the sum of magnitudes
  const RandomWeight stored(dtype, shape.n, shape.k, 11);
  const std::unique_ptr<Weight> weight = Prepare(ops, stored);
  const std::vector<float> in = GaussianValues(shape.rows * shape.k, 12);
  const std::vector<float> biases = GaussianValues(bias ? shape.n : 0, 13);
  const int64_t stride = shape.n + 3;
  const std::vector<float> before = GaussianValues(shape.rows * stride, 14);
  const std::vector<float> out =
      Multiplied(ops, {weight.get()}, in, shape.rows, before, biases, accumulate);

  const std::vector<double> seen = SeenInput(dtype, in);
  std::vector<float> row(shape.k);
  for (int64_t n = 0; n < shape.n; ++n) {
    DequantizeRow(stored.view(), n, absl::MakeSpan(row));
    for (int64_t t = 0; t < shape.rows; ++t) {
      double want = (bias ? biases[n] : 0.0) + (accumulate ? before[t * stride + n] : 0.0);
      double magnitude = 1.0;
      for (int64_t i = 0; i < shape.k; ++i) {
        const double product = SeenWeight(row[i]) * seen[t * shape.k + i];
        want += product;
        magnitude += std::abs(product);
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

using MatmulTest = OpsTest;

// With and without the law.
void ForBothOps(const std::function<void(Ops&)>& body) {
  for (auto* create : {CreateTestedOps, CreateFastestOps}) {
    const absl::StatusOr<std::unique_ptr<Ops>> ops = create(2);
    ASSERT_TRUE(ops.ok()) << ops.status();
    ForEachKindOfCode([&] { body(**ops); });
  }
}

TEST_F(MatmulTest, IsTheProduct) {
  ForBothOps([](Ops& ops) {
    for (DType dtype : kAllDTypes) {
      const int64_t k = Info(dtype).block_size == 256 ? 512 : 96;
      for (const Shape& shape : {Shape{1, k, 1}, Shape{2, k, 16}, Shape{3, k, 33}, Shape{4, k, 9},
                                 Shape{15, k, 40}, Shape{130, k, 20}}) {
        CheckProduct(ops, dtype, shape, shape.n > 16, shape.rows > 1);
      }
    }
  });
}

TEST_F(MatmulTest, PlainWeightsTakeAnyNumberOfColumns) {
  ForBothOps([](Ops& ops) {
    for (DType dtype : {DType::kF32, DType::kF16, DType::kBF16}) {
      for (int64_t steps : {1, 2, 3, 5, 30, 100}) {
        for (int64_t rows : {1, 3}) {
          CheckProduct(ops, dtype, {rows, steps * ColumnStep(), 17}, true, false);
        }
      }
    }
  });
}

// Of which a GPU's multiprocessor may not hold those of all rows at once.
TEST_F(MatmulTest, RowsMayBeLong) {
  ForBothOps([](Ops& ops) {
    for (int64_t k : {16384, 18000, 25000}) CheckProduct(ops, DType::kBF16, {4, k, 5}, true, true);
  });
}

// However many share an input.
TEST_F(MatmulTest, ProductsOfAnInputAreThoseOfEachAlone) {
  ForBothOps([](Ops& ops) {
    const std::vector<int64_t> widths = {5, 4, 8, 3, 17, 2};
    for (int64_t rows : {1, 2, 4, 5}) {
      const std::vector<float> in = GaussianValues(rows * 264, 41);
      std::vector<std::unique_ptr<Weight>> weights;
      std::vector<const Weight*> all;
      std::vector<std::vector<float>> alone;
      int64_t stride = 0;
      for (const int64_t width : widths) {
        weights.push_back(Prepare(ops, RandomWeight(DType::kBF16, width, 264, width)));
        all.push_back(weights.back().get());
        alone.push_back(Multiplied(ops, {all.back()}, in, rows, std::vector<float>(rows * width)));
        stride += width;
      }
      const std::vector<float> out =
          Multiplied(ops, all, in, rows, std::vector<float>(rows * stride, NAN));
      int64_t first = 0;
      for (size_t i = 0; i < widths.size(); first += widths[i++]) {
        for (int64_t t = 0; t < rows; ++t) {
          for (int64_t n = 0; n < widths[i]; ++n) {
            ASSERT_NEAR(out[t * stride + first + n], alone[i][t * widths[i] + n], 1e-4)
                << i << ", row " << t << " of " << rows << ", column " << n;
          }
        }
      }
    }
  });
}

TEST_F(MatmulTest, OtherNumbersOfColumnsAreRefusedByName) {
  const auto ops = NewOps();
  for (int64_t k = 1; k < ColumnStep(); ++k) {
    const RandomWeight stored(DType::kF32, 3, k, 1);
    const absl::Status status = ops->PrepareWeight(stored.view()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kUnimplemented);
    EXPECT_NE(status.message().find("3 x " + std::to_string(k)), std::string::npos) << status;
  }
}

// What an output held before it is written may be anything.
TEST_F(MatmulTest, OverwritesNaN) {
  const auto ops = NewOps();
  const RandomWeight stored(DType::kF16, 24, 64, 1);
  const std::unique_ptr<Weight> weight = Prepare(*ops, stored);
  const std::vector<float> in = GaussianValues(5 * 64, 2), before(5 * 24, NAN);
  for (const float x : Multiplied(*ops, {weight.get()}, in, 5, before)) {
    ASSERT_TRUE(std::isfinite(x));
  }
}

// The law: a row's bits depend on that row alone, whatever the batch, its place in it and the
// threads.
TEST_F(MatmulTest, RowsDoNotDependOnTheBatch) {
  ForEachKindOfCode([&] {
    constexpr int64_t kMaxRows = 150, kStride = 47;
    for (DType dtype : kAllDTypes) {
      const int64_t k = Info(dtype).block_size == 256 ? 256 : 64;
      const RandomWeight first(dtype, 40, k, 21), second(dtype, 7, k, 22);
      const std::vector<float> in = GaussianValues(kMaxRows * k, 23);
      std::vector<float> whole;
      for (int threads : ThreadCounts()) {
        const auto ops = NewOps(threads);
        const std::unique_ptr<Weight> weights[] = {Prepare(*ops, first), Prepare(*ops, second)};
        const auto run = [&](int64_t begin, int64_t rows) {
          return Multiplied(*ops, {weights[0].get(), weights[1].get()},
                            {in.begin() + begin * k, in.begin() + (begin + rows) * k}, rows,
                            std::vector<float>(rows * kStride));
        };
        if (whole.empty()) whole = run(0, kMaxRows);
        for (int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 129}) {
          for (int64_t begin : {int64_t{0}, int64_t{1}, kMaxRows - rows}) {
            const std::vector<float> part = run(begin, rows);
            ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin * kStride))
                << Info(dtype).name << " rows " << rows << " from " << begin << ", " << threads
                << " threads";
          }
        }
      }
    }
  });
}

// The same with sizes of a model's, whose sums are long.
TEST_F(MatmulTest, RowsOfLongSumsDoNotDependOnTheBatch) {
  const auto ops = NewOps(2);
  constexpr int64_t kMaxRows = 300, kN = 576, kK = 1536;
  const RandomWeight stored(DType::kF16, kN, kK, 31);
  const std::unique_ptr<Weight> weight = Prepare(*ops, stored);
  const std::vector<float> in = GaussianValues(kMaxRows * kK, 32);
  const auto run = [&](int64_t begin, int64_t rows) {
    return Multiplied(*ops, {weight.get()},
                      {in.begin() + begin * kK, in.begin() + (begin + rows) * kK}, rows,
                      std::vector<float>(rows * kN));
  };
  const std::vector<float> whole = run(0, kMaxRows);
  for (int64_t rows : {1, 2, 16, 17, 64, 100, 128, 129, 256}) {
    const int64_t begin = kMaxRows - rows;
    const std::vector<float> part = run(begin, rows);
    ASSERT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + begin * kN)) << rows;
  }
}

TEST_F(MatmulTest, NaNStaysInItsRow) {
  ForBothOps([](Ops& ops) {
    for (DType dtype : kAllDTypes) {
      const int64_t k = Info(dtype).block_size == 256 ? 256 : 64;
      const RandomWeight stored(dtype, 20, k, 31);
      const std::unique_ptr<Weight> weight = Prepare(ops, stored);
      std::vector<float> in = GaussianValues(3 * k, 32);
      in[k + 40] = std::numeric_limits<float>::quiet_NaN();
      const std::vector<float> out =
          Multiplied(ops, {weight.get()}, in, 3, std::vector<float>(3 * 20));
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
