#include "engine/batch.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/cache_layout.h"

namespace latentd {
namespace {

using ::testing::ElementsAre;

TEST(AppendRows, PlacesRowsOfSeveralSequences) {
  std::vector<int32_t> first(70), second = {9};
  for (int i = 0; i < 70; ++i) first[i] = 100 + i;
  Batch batch{.max_blocks = 2};
  EXPECT_EQ(AppendRows(&batch, first, 62, 66, {{7, 3}}, 2), 3);
  EXPECT_EQ(AppendRows(&batch, second, 0, 1, {{5}}, 0), 4);
  EXPECT_THAT(batch.token_ids, ElementsAre(162, 163, 164, 165, 9));
  EXPECT_THAT(batch.positions, ElementsAre(62, 63, 64, 65, 0));
  EXPECT_THAT(batch.slots, ElementsAre(7 * 64 + 62, 7 * 64 + 63, 3 * 64, 3 * 64 + 1, 5 * 64));
  EXPECT_THAT(batch.cu_q_lens, ElementsAre(0, 4, 5));
  EXPECT_THAT(batch.kv_lens, ElementsAre(66, 1));
  EXPECT_THAT(batch.block_table, ElementsAre(7, 3, 5, -1));
}

}  // namespace
}  // namespace latentd
