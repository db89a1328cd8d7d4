#include <cmath>
#include <vector>

#include "gtest/gtest.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/packed_weight.h"
#include "tests/kernels/cpu/vector_targets.h"
#include "tests/testing/random_weight.h"

namespace latentd {
namespace {

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

}  // namespace
}  // namespace latentd
