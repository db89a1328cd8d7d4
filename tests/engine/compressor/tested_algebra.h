#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/compressor/dense_algebra.h"
#include "tests/testing/tested_backend.h"

namespace latentd {

// The algebra of the tested backend's device.
inline std::unique_ptr<DenseAlgebra> NewAlgebra(int threads) {
  const bool is_cpu = std::string_view(TestedBackendName()) == "cpu";
  auto algebra = CreateDenseAlgebra(is_cpu ? "cpu" : "cuda:0", threads);
  EXPECT_TRUE(algebra.ok()) << algebra.status();
  return *std::move(algebra);
}

// Rows of `cols` values, as a checkpoint has them.
inline TensorView ViewOf(const std::vector<float>& values, int64_t cols) {
  return {.dtype = DType::kF32,
          .rows = std::ssize(values) / cols,
          .cols = cols,
          .data = reinterpret_cast<const std::byte*>(values.data())};
}

// A weight's values, by products with the unit vectors.
inline std::vector<float> WeightOf(DenseAlgebra& algebra, const DenseLinear& linear) {
  std::vector<float> unit(linear.out * linear.out), values(linear.out * linear.in);
  for (int64_t i = 0; i < linear.out; ++i) unit[i * linear.out + i] = 1;
  algebra.ProductBackward(unit.data(), linear.out, linear, /*accumulate=*/false, values.data());
  return values;
}

}  // namespace latentd
