#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/device_values.h"
#include "tests/testing/tested_backend.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;
using ::testing::StartsWith;

// With or without a GPU.
TEST(CreateCudaOpsTest, AnErrorNamesTheDevice) {
  const absl::Status status = CreateCudaOps(999).status();
  EXPECT_FALSE(status.ok());
  EXPECT_THAT(status.message(), HasSubstr("cuda:999"));
}

using CudaOpsTest = OpsTest;

TEST_F(CudaOpsTest, NamesTheGpu) {
  EXPECT_THAT(std::string(NewOps()->name()), StartsWith("cuda:0 (NVIDIA"));
}

TEST_F(CudaOpsTest, MemoryIsZeroAtFirstAndHoldsWhatIsCopied) {
  const auto ops = NewOps();
  auto array = DeviceArray<uint8_t>::Create(ops->device(), 1000);
  ASSERT_TRUE(array.ok()) << array.status();
  EXPECT_EQ(reinterpret_cast<uintptr_t>(array->data()) % 256, 0u);
  EXPECT_EQ(ToHost(*ops, *array), std::vector<uint8_t>(1000, 0));
  ops->device().Fill(array->data() + 10, 0xFF, 20);
  std::vector<uint8_t> want(1000, 0);
  std::fill_n(want.begin() + 10, 20, 0xFF);
  EXPECT_EQ(ToHost(*ops, *array), want);
}

TEST_F(CudaOpsTest, MemoryThatIsNotThereIsNamedAndLeavesTheDeviceWell) {
  const auto ops = NewOps();
  constexpr int64_t kBytes = int64_t{1} << 50;
  const absl::Status status = DeviceArray<uint8_t>::Create(ops->device(), kBytes).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(status.message(), HasSubstr(std::to_string(kBytes)));
  EXPECT_EQ(ToHost(*ops, ToDevice<int>(*ops, {1, 2, 3})), std::vector<int>({1, 2, 3}));
}

// out[n] = n of the rows that a list names, as long as the list of a large step.
std::vector<float> GatherOrdinals(Ops& ops, const std::vector<int32_t>& rows) {
  std::vector<float> ordinals(*std::max_element(rows.begin(), rows.end()) + 1);
  for (size_t i = 0; i < ordinals.size(); ++i) ordinals[i] = static_cast<float>(i);
  const DeviceArray<float> in = ToDevice(ops, ordinals);
  const DeviceArray<float> out = ToDevice(ops, std::vector<float>(rows.size(), NAN));
  ops.Gather({.in = in.data(), .dims = 1, .rows = rows, .out = out.data()});
  return ToHost(ops, out);
}

// The first lists do not fit in what later ones are brought with.
TEST_F(CudaOpsTest, ListsOfAnyLengthReachTheDevice) {
  const auto ops = NewOps();
  for (const int32_t length : {1, 1000, 300000, 1000000, 7, 1000000}) {
    std::vector<int32_t> rows(length);
    for (int32_t i = 0; i < length; ++i) rows[i] = (i * 7 + length) % 1000;
    ops->BeginStep({.positions = rows});
    for (int again = 0; again < 2; ++again) {
      ASSERT_EQ(GatherOrdinals(*ops, rows), std::vector<float>(rows.begin(), rows.end()));
    }
  }
}

TEST_F(CudaOpsTest, AnotherThreadTakesOver) {
  const auto ops = NewOps();
  std::vector<float> gathered;
  std::thread([&] {
    ops->BeginStep({});
    gathered = GatherOrdinals(*ops, {3, 1});
  }).join();
  EXPECT_EQ(gathered, std::vector<float>({3, 1}));
}

}  // namespace
}  // namespace latentd
