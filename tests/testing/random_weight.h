#pragma once

#include <cstring>
#include <vector>

#include "base/random.h"
#include "kernels/dtype.h"

namespace latentd {

inline constexpr DType kAllDTypes[] = {DType::kF32,  DType::kF16,  DType::kBF16, DType::kQ4_0,
                                       DType::kQ4_1, DType::kQ5_0, DType::kQ5_1, DType::kQ8_0,
                                       DType::kQ4_K, DType::kQ5_K, DType::kQ6_K};

// A weight of random codes with scales of the usual size, and its memory.
class RandomWeight {
 public:
  RandomWeight(DType dtype, int64_t rows, int64_t cols, uint64_t seed)
      : bytes_(rows * RowBytes(dtype, cols)),
        view_{.dtype = dtype, .rows = rows, .cols = cols, .data = bytes_.data()} {
    for (size_t i = 0; i < bytes_.size(); ++i) {
      bytes_[i] = static_cast<std::byte>(RandomBits(seed, i) & 0xff);
    }
    const int64_t blocks = rows * cols / Info(dtype).block_size;
    for (int64_t b = 0; b < blocks; ++b) SetScales(b, seed);
  }
  RandomWeight(const RandomWeight&) = delete;
  RandomWeight& operator=(const RandomWeight&) = delete;

  const TensorView& view() const { return view_; }

 private:
  void SetScales(int64_t b, uint64_t seed) {
    std::byte* block = bytes_.data() + b * Info(view_.dtype).block_bytes;
    const float u = RandomUniform(seed + 1, 2 * b), v = RandomUniform(seed + 1, 2 * b + 1);
    const auto put = [&](int offset, float value) {
      const uint16_t half = FloatToHalf(value);
      std::memcpy(block + offset, &half, sizeof(half));
    };
    switch (view_.dtype) {
      case DType::kF32: {
        const float value = u - 0.5f;
        std::memcpy(block, &value, sizeof(value));
        return;
      }
      case DType::kF16:
        return put(0, u - 0.5f);
      case DType::kBF16: {
        const float value = u - 0.5f;
        std::memcpy(block, reinterpret_cast<const char*>(&value) + 2, 2);
        return;
      }
      case DType::kQ4_0:
      case DType::kQ5_0:
      case DType::kQ8_0:
        return put(0, 0.01f * (u - 0.5f));
      case DType::kQ4_1:
      case DType::kQ5_1:
        put(0, 0.01f * u);
        return put(2, -0.1f * v);
      case DType::kQ4_K:
      case DType::kQ5_K:
        put(0, 0.001f * u);
        return put(2, 0.005f * v);
      case DType::kQ6_K:
        return put(208, 0.0001f * u);
    }
  }

  std::vector<std::byte> bytes_;
  TensorView view_;
};

}  // namespace latentd
