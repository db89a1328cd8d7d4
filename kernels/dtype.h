#pragma once

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace latentd {

// How the numbers of a tensor are stored. The quantised types are GGUF's: blocks along a row,
// little endian.
enum class DType : uint8_t {
  kF32,
  kF16,
  kBF16,
  kQ4_0,
  kQ4_1,
  kQ5_0,
  kQ5_1,
  kQ8_0,
  kQ4_K,
  kQ5_K,
  kQ6_K
};

struct DTypeInfo {
  const char* name;
  int block_size;   // values in one block along a row; 1 when not quantised
  int block_bytes;  // bytes of one block
};

// Constant facts of a type.
const DTypeInfo& Info(DType dtype);

inline bool IsQuantized(DType dtype) { return Info(dtype).block_size > 1; }

// Bytes of a row of `cols` values; `cols` is a multiple of the block size.
int64_t RowBytes(DType dtype, int64_t cols);

// A borrowed row-major matrix [rows, cols]; a vector has one row.
struct TensorView {
  DType dtype = DType::kF32;
  int64_t rows = 0;
  int64_t cols = 0;
  const std::byte* data = nullptr;

  int64_t bytes() const { return rows * RowBytes(dtype, cols); }
  const std::byte* row(int64_t r) const { return data + r * RowBytes(dtype, cols); }
};

// out[n] = row `row` of the matrix as fp32: the definition of every stored type. out.size() is
// view.cols.
void DequantizeRow(const TensorView& view, int64_t row, absl::Span<float> out);

// IEEE half and bfloat16, round to nearest even; infinities and NaN kept.
float HalfToFloat(uint16_t half);
uint16_t FloatToHalf(float value);
inline float BFloat16ToFloat(uint16_t bits) {
  const uint32_t word = static_cast<uint32_t>(bits) << 16;
  float value;
  __builtin_memcpy(&value, &word, sizeof(value));
  return value;
}

}  // namespace latentd
