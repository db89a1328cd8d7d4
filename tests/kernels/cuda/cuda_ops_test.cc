#include "kernels/cuda/cuda_ops.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <thread>
#include <vector>

#include "base/random.h"
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

// Steps whose ops are one Embed, which halves 0, 1, 2, ... of a table to fp32.
class CudaReplayTest : public OpsTest {
 protected:
  static constexpr int kMaxRows = 100;

  void SetUp() override {
    OpsTest::SetUp();
    if (IsSkipped() || HasFatalFailure()) return;
    ops_ = NewOps();
    std::vector<uint16_t> halves(1000);
    for (int i = 0; i < 1000; ++i) halves[i] = FloatToHalf(static_cast<float>(i));
    table_ = ToDevice(*ops_, halves);
    out_ = ToDevice(*ops_, std::vector<float>(kMaxRows));
  }

  // A step of sequences whose block table has `max_blocks` columns, one of them `longest` tokens
  // long. Whether it called the ops. Checks what it writes.
  bool Calls(int sequences, int max_blocks = 4, int longest = 10) {
    std::vector<int32_t> ids(sequences), kv_lens(sequences, 1), table(sequences * max_blocks);
    for (int32_t& id : ids) id = static_cast<int32_t>(RandomBits(1, next_id_++) % 1000);
    kv_lens.back() = longest;
    ops_->BeginStep({.token_ids = ids, .kv_lens = kv_lens, .block_table = table});
    bool called = false;
    const uint8_t pool = 0;
    ops_->Replay(&pool, [&] {
      called = true;
      ops_->Embed({.token_ids = ids,
                   .table = {.dtype = DType::kF16,
                             .rows = 1000,
                             .cols = 1,
                             .data = reinterpret_cast<const std::byte*>(table_.data())},
                   .out = out_.data()});
    });
    std::vector<float> out = ToHost(*ops_, out_);
    out.resize(sequences);
    EXPECT_EQ(out, std::vector<float>(ids.begin(), ids.end()));
    return called;
  }

  std::unique_ptr<Ops> ops_;
  DeviceArray<uint16_t> table_;
  DeviceArray<float> out_;
  int next_id_ = 0;
};

TEST_F(CudaReplayTest, AStepIsRecordedWhenItComesUpAgain) {
  for (int sequences = 1; sequences < 4; ++sequences) EXPECT_TRUE(Calls(sequences));
  for (int sequences = 1; sequences < 4; ++sequences) EXPECT_TRUE(Calls(sequences));
  for (int again = 0; again < 3; ++again) {
    for (int sequences = 1; sequences < 4; ++sequences) EXPECT_FALSE(Calls(sequences));
  }
}

TEST_F(CudaReplayTest, BlockTablesAndContextsOfAnotherSizeAreAnotherStep) {
  Calls(2, 5, 1000);
  Calls(2, 5, 1000);
  EXPECT_FALSE(Calls(2, 5, 1000));
  EXPECT_FALSE(Calls(2, 8, 1024));
  EXPECT_TRUE(Calls(2, 9, 1024));
  EXPECT_TRUE(Calls(2, 4, 1024));
  EXPECT_TRUE(Calls(2, 5, 1025));
  EXPECT_FALSE(Calls(2, 6, 1));
}

TEST_F(CudaReplayTest, MemoryThatIsAllocatedEndsWhatWasRecorded) {
  Calls(1);
  Calls(1);
  EXPECT_FALSE(Calls(1));
  out_ = ToDevice(*ops_, std::vector<float>(kMaxRows));
  EXPECT_TRUE(Calls(1));
  EXPECT_TRUE(Calls(1));
  EXPECT_FALSE(Calls(1));
}

TEST_F(CudaReplayTest, TheLeastUsedGivesWay) {
  for (int round = 0; round < 2; ++round) {
    for (int sequences = 1; sequences <= 64; ++sequences) Calls(sequences);
  }
  EXPECT_FALSE(Calls(1));
  EXPECT_TRUE(Calls(65));  // takes the place of 2
  EXPECT_FALSE(Calls(1));
  EXPECT_FALSE(Calls(3));
  EXPECT_TRUE(Calls(2));
}

// The CUDA runtime keeps the error of a call for the thread that made it.
TEST_F(CudaReplayTest, WhatCannotBeRecordedIsAnErrorThatStays) {
  std::thread([&] {
    ops_->BeginStep({});
    const uint8_t pool = 0;
    ops_->Replay(&pool, [] {});
    ops_->Replay(&pool,
                 [&] { EXPECT_FALSE(DeviceArray<float>::Create(ops_->device(), 1000).ok()); });
    EXPECT_THAT(ops_->device().Wait().message(), HasSubstr("recording of a step"));
  }).join();
  EXPECT_THAT(ops_->device().Wait().message(), HasSubstr("recording of a step"));
}

}  // namespace
}  // namespace latentd
