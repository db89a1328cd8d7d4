#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "engine/local_engine.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/own_memory_ops.h"
#include "tests/testing/tiny_model.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

class CacheFractionTest : public ::testing::Test {
 protected:
  absl::StatusOr<std::unique_ptr<Engine>> Create(int64_t memory, const EngineOptions& options) {
    auto ops = std::make_unique<OwnMemoryOps>(memory);
    device_ = &ops->device();
    return CreateLocalEngine(*checkpoint_, nullptr, std::move(ops), options);
  }
  int64_t used() { return (*device_->Memory())->used; }

  const std::unique_ptr<Checkpoint> checkpoint_ = *Checkpoint::Open(WriteTinyModel({}));
  Device* device_ = nullptr;
};

constexpr int64_t kMemory = 10 << 20, kBlock = 16384;

TEST_F(CacheFractionTest, ThePoolTakesWhatWeightsAndStepLeave) {
  const auto engine = Create(kMemory, {.cache_fraction = 0.5, .num_sequences = 4, .max_rows = 64});
  ASSERT_TRUE(engine.ok()) << engine.status();
  const EngineInfo& info = (*engine)->info();
  EXPECT_EQ(used(), info.device_bytes_used + info.pool_bytes);
  EXPECT_LE(used(), kMemory / 2);
  EXPECT_GT(used(), kMemory / 2 - kBlock);
  EXPECT_EQ(info.pool_bytes, info.num_blocks * kBlock);
  EXPECT_EQ(info.device_bytes, kMemory);
  EXPECT_EQ(info.max_context, 256);
}

// What the largest step took before the pool was sized is there for any other.
TEST_F(CacheFractionTest, NoStepTakesMore) {
  for (const int rows : {32, 128}) {
    const auto engine =
        Create(kMemory, {.cache_fraction = 0.5, .num_sequences = 4, .max_rows = rows});
    ASSERT_TRUE(engine.ok()) << engine.status();
    const int64_t before = used();
    const std::vector<int32_t> tokens(256, 5), blocks = {7, 3, 5, 1};
    for (const int sequences : {1, 4}) {
      Batch batch{.max_blocks = 4};
      const int end = sequences == 1 ? rows : rows / 4;
      for (int s = 0; s < sequences; ++s) {
        const int row = AppendRows(&batch, tokens, 0, end, blocks, s);
        batch.samples.push_back({.row = row, .params = {.temperature = 0}, .position = end});
      }
      const auto output = (*engine)->Step(batch);
      ASSERT_TRUE(output.ok()) << output.status();
      EXPECT_TRUE(output->samples[0].ok);
    }
    EXPECT_EQ(used(), before);
  }
}

TEST_F(CacheFractionTest, AContextIsAsLongAsThePool) {
  const int64_t beside = Create(kMemory, {.cache_fraction = 1})->get()->info().device_bytes_used;
  const auto engine = Create(beside + 2 * kBlock, {.cache_fraction = 1});
  ASSERT_TRUE(engine.ok()) << engine.status();
  EXPECT_EQ((*engine)->info().num_blocks, 2);
  EXPECT_EQ((*engine)->info().max_context, 128);
}

TEST_F(CacheFractionTest, TooLittleMemoryNamesTheFlagAndAllNumbers) {
  const int64_t beside = Create(kMemory, {.cache_fraction = 1})->get()->info().device_bytes_used;
  const std::string error(Create(kMemory, {.cache_fraction = 0.01}).status().message());
  const auto share = static_cast<int64_t>(kMemory * 0.01);
  EXPECT_THAT(error, HasSubstr(absl::StrCat("--cache-fraction is 0.01, which is ", share + 1,
                                            " of ", kMemory, " bytes")));
  EXPECT_THAT(error, HasSubstr(absl::StrCat("use ", beside, " and leave 0 for the cache")));
  EXPECT_THAT(error, HasSubstr(absl::StrCat("the smallest cache takes ", kBlock)));
}

TEST_F(CacheFractionTest, ADeviceWithoutMemoryOfItsOwnHasCacheBytes) {
  EXPECT_THAT(std::string(CreateLocalEngine(*checkpoint_, nullptr, CreateReferenceOps(),
                                            {.cache_fraction = 0.5})
                              .status()
                              .message()),
              HasSubstr("use --cache-bytes"));
}

}  // namespace
}  // namespace latentd
