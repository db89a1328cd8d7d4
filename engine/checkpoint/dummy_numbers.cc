#include "engine/checkpoint/dummy_numbers.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/command_line.h"
#include "base/machine_memory.h"
#include "base/random.h"

namespace latentd {
namespace {

// After so many the numbers begin again. A prime, so that no two rows of a matrix are equal.
constexpr int64_t kPeriod = 1048573;
constexpr int64_t kAlignment = 32;  // numbers
constexpr float kDeviation = 0.02f;

// The sum of four uniform numbers in [0, 2^16) has the mean 2^17 and the deviation 2^16 / sqrt(3).
uint16_t DummyNumber(uint64_t bits) {
  int64_t sum = 0;
  for (int i = 0; i < 4; ++i, bits >>= 16) sum += static_cast<int64_t>(bits & 0xffff);
  const float normal = static_cast<float>(sum - (1 << 17)) * 0x1p-16f * std::sqrt(3.0f);
  const float number = kDeviation * normal;
  uint32_t word;
  __builtin_memcpy(&word, &number, sizeof(word));
  return static_cast<uint16_t>(word >> 16);
}

}  // namespace

absl::StatusOr<DummyNumbers> DummyNumbers::Create(int64_t largest, uint64_t seed) {
  const auto bytes = 2.0 * static_cast<double>(largest + kPeriod);
  const auto memory = static_cast<double>(MachineMemory());
  if (bytes > memory) {
    return absl::ResourceExhaustedError(
        absl::StrCat(largest, " dummy numbers take ", FormatBytes(bytes),
                     " of memory, this machine has ", FormatBytes(memory)));
  }
  return DummyNumbers(largest, seed);
}

DummyNumbers::DummyNumbers(int64_t largest, uint64_t seed)
    : seed_(seed), numbers_(largest + kPeriod) {
  const int64_t count = std::ssize(numbers_);
  for (int64_t i = 0; i < kPeriod; ++i) numbers_[i] = DummyNumber(RandomBits(seed, i));
  for (int64_t done = kPeriod; done < count; done *= 2) {
    std::copy_n(numbers_.begin(), std::min(done, count - done), numbers_.begin() + done);
  }
}

TensorView DummyNumbers::Matrix(int64_t rows, int64_t cols, uint64_t name) const {
  LATENTD_CHECK(rows * cols + kPeriod <= std::ssize(numbers_));
  const auto places = static_cast<uint64_t>(kPeriod / kAlignment);
  const auto place = static_cast<int64_t>(RandomBits(~seed_, name) % places) * kAlignment;
  return {.dtype = DType::kBF16,
          .rows = rows,
          .cols = cols,
          .data = reinterpret_cast<const std::byte*>(numbers_.data() + place)};
}

}  // namespace latentd
