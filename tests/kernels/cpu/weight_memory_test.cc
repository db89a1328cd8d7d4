#include "kernels/cpu/weight_memory.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

TEST(WeightMemory, AreasAreApartAlignedAndZero) {
  WeightMemory memory;
  std::vector<std::pair<std::shared_ptr<uint8_t[]>, size_t>> areas;
  for (size_t bytes : {1, 64, 100, 3 << 20, 70 << 20, 5}) {  // 70 MiB: more than a region
    auto area = memory.Allocate(bytes);
    ASSERT_TRUE(area.ok()) << area.status();
    uint8_t* data = area->get();
    EXPECT_EQ(reinterpret_cast<uintptr_t>(data) % 64, 0u);
    EXPECT_EQ(data[0], 0);
    EXPECT_EQ(data[bytes - 1], 0);
    for (const auto& [other, other_bytes] : areas) {
      EXPECT_TRUE(data + bytes <= other.get() || other.get() + other_bytes <= data);
    }
    std::fill_n(data, std::min<size_t>(bytes, 4096), uint8_t{0xff});
    areas.emplace_back(*std::move(area), bytes);
  }
}

TEST(WeightMemory, AreasOutliveIt) {
  std::optional<WeightMemory> memory(std::in_place);
  auto first = memory->Allocate(1000), second = memory->Allocate(1000);
  ASSERT_TRUE(first.ok() && second.ok());
  memory.reset();
  first->reset();
  (*second)[999] = 7;
  EXPECT_EQ((*second)[999], 7);
}

TEST(WeightMemory, NamesTheSizeThatIsNotThere) {
  WeightMemory memory;
  const auto area = memory.Allocate(size_t{1} << 60);
  ASSERT_EQ(area.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(area.status().message(), testing::HasSubstr("1152921504606846976"));
}

}  // namespace
}  // namespace latentd
