#include "kernels/cpu/packed_weight.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/random_weight.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

// Weights stay quantised: their memory is that of the file, but for the padding of panels.
TEST(PackedWeight, TakesTheBytesOfTheFile) {
  ThreadPool pool(2);
  WeightMemory memory;
  for (DType dtype : kAllDTypes) {
    const RandomWeight weight(dtype, 64, 512, 1);
    const auto packed = PackedWeight::Create(weight.view(), memory, pool);
    ASSERT_TRUE(packed.ok()) << packed.status();
    const auto stored = static_cast<double>(weight.view().bytes());
    EXPECT_GE((*packed)->bytes(), stored) << Info(dtype).name;
    // K types: 6-bit scales take whole bytes.
    EXPECT_LE((*packed)->bytes(), 1.03 * stored) << Info(dtype).name;
  }
}

TEST(PackedWeight, RowsArePaddedToPanels) {
  ThreadPool pool(1);
  WeightMemory memory;
  const RandomWeight weight(DType::kQ4_1, 17, 32, 1);
  const auto packed = PackedWeight::Create(weight.view(), memory, pool);
  ASSERT_TRUE(packed.ok());
  EXPECT_EQ((*packed)->rows(), 17);
  EXPECT_EQ((*packed)->cols(), 32);
  EXPECT_EQ((*packed)->panels(), 2);
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*packed)->panel(1)) % 64, 0u);
}

TEST(PackedWeight, RefusesColumnsThatAreNoWholeBlocks) {
  ThreadPool pool(1);
  WeightMemory memory;
  const TensorView view{.dtype = DType::kQ4_K, .rows = 2, .cols = 128};
  const auto packed = PackedWeight::Create(view, memory, pool);
  ASSERT_EQ(packed.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(packed.status().message(), HasSubstr("128"));
  EXPECT_THAT(packed.status().message(), HasSubstr("256"));
  const TensorView empty{.dtype = DType::kF32, .rows = 0, .cols = 4};
  EXPECT_FALSE(PackedWeight::Create(empty, memory, pool).ok());
}

}  // namespace
}  // namespace latentd
