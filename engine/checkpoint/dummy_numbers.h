#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"

namespace latentd {

// Random matrices of any number that take no more memory than the largest of them: all are views
// of one block of bf16 numbers, each from a place of its own. The numbers are about normal, with
// mean 0 and the deviation 0.02 that models are initialised with, and a function of `seed` alone.
class DummyNumbers {
 public:
  // Enough for matrices of up to so many numbers. RESOURCE_EXHAUSTED names the bytes and the
  // machine's memory when they would not fit into it.
  static absl::StatusOr<DummyNumbers> Create(int64_t largest, uint64_t seed);

  // The matrix called `name`: the same name and shape give the same numbers. Valid as long as this
  // object.
  TensorView Matrix(int64_t rows, int64_t cols, uint64_t name) const;

 private:
  DummyNumbers(int64_t largest, uint64_t seed);

  uint64_t seed_;
  std::vector<uint16_t> numbers_;
};

}  // namespace latentd
