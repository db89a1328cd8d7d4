#include "kernels/cache_view.h"

#include <vector>

#include "gtest/gtest.h"

namespace latentd {
namespace {

CacheLayer Layer() {
  return {.k = {.latent_heads = 1, .segments = {{.dims = 16, .codec = Codec::kInt4}}},
          .v = {.latent_heads = 2,
                .segments = {{.dims = 32, .codec = Codec::kInt2}},
                .order = TileOrder::kTokenMajor},
          .sinks = 3,
          .sink_dims = 24,
          .own_page = true};
}

TEST(StepPages, CountsThePagesBeforeEachLast) {
  // Rows:            none         0 .. 63   63 .. 64   64 .. 200    5
  const std::vector<int32_t> cu = {0, 0, 64, 66, 203, 204}, kv = {500, 64, 65, 201, 6};
  EXPECT_EQ(StepPages(cu, kv), (std::vector<int32_t>{0, 0, 0, 1, 3, 3}));
  EXPECT_EQ(StepPages({}, {}), std::vector<int32_t>{0});
}

TEST(OwnPage, TheLastLiesInTheSeatAndTheOthersInTheStepsPages) {
  const CacheLayer layer = Layer();
  std::vector<uint8_t> seats(4 * layer.sequence_bytes()), pages(3 * layer.own_page_bytes());
  const std::vector<int32_t> cu = {0, 2, 139}, kv = {65, 201}, seat_of = {2, 0};
  const std::vector<int32_t> first = StepPages(cu, kv);
  const CacheView view = {.cu_q_lens = cu,
                          .kv_lens = kv,
                          .seats = seats.data(),
                          .seat_of = seat_of,
                          .step_pages = pages.data(),
                          .first_step_page = first};
  EXPECT_EQ(PagesOfRows(view, 0).first, 0);
  EXPECT_EQ(PagesOfRows(view, 0).last, 1);
  EXPECT_EQ(PagesOfRows(view, 1).first, 1);
  EXPECT_EQ(PagesOfRows(view, 1).last, 3);
  EXPECT_EQ(OwnPage(layer, view, 0, 0), pages.data());
  EXPECT_EQ(OwnPage(layer, view, 1, 1), pages.data() + layer.own_page_bytes());
  EXPECT_EQ(OwnPage(layer, view, 1, 2), pages.data() + 2 * layer.own_page_bytes());
  EXPECT_EQ(OwnPage(layer, view, 0, 1),
            seats.data() + 2 * layer.sequence_bytes() + layer.sink_bytes());
  EXPECT_EQ(OwnPage(layer, view, 1, 3), seats.data() + layer.sink_bytes());
  EXPECT_EQ(reinterpret_cast<uint8_t*>(Sinks(layer, view, 0)),
            seats.data() + 2 * layer.sequence_bytes());
}

TEST(CheckViewDeathTest, AViewHasASeatAStepPageAndBlocksForEverySequence) {
  const CacheLayer layer = Layer();
  uint8_t seats = 0;
  const std::vector<int32_t> cu = {0, 2, 3}, kv = {65, 10}, seat_of = {1, 0}, first = {0, 1, 1};
  const std::vector<int32_t> blocks(4, 0), too_long = {65, 129}, too_short = {1, 10};
  const CacheView good = {.block_bytes = layer.block_bytes(),
                          .cu_q_lens = cu,
                          .kv_lens = kv,
                          .block_table = blocks,
                          .max_blocks = 2,
                          .seats = &seats,
                          .seat_of = seat_of,
                          .first_step_page = first};
  CheckView(layer, good);
  const auto expect_death = [&](auto change) {
    CacheView view = good;
    change(view);
    EXPECT_DEATH(CheckView(layer, view), "");
  };
  expect_death([](CacheView& view) { view.block_bytes += 128; });
  expect_death([](CacheView& view) { view.cu_q_lens.remove_suffix(1); });
  expect_death([](CacheView& view) { view.block_table.remove_suffix(1); });
  expect_death([&](CacheView& view) { view.kv_lens = too_long; });
  expect_death([&](CacheView& view) { view.kv_lens = too_short; });
  expect_death([](CacheView& view) { view.seats = nullptr; });
  expect_death([](CacheView& view) { view.seat_of.remove_suffix(1); });
  expect_death([](CacheView& view) { view.first_step_page.remove_suffix(1); });
}

TEST(OwnPageDeathTest, IsOfAPageThatTheRowsTouch) {
  const CacheLayer layer = Layer();
  const std::vector<int32_t> cu = {0, 2}, kv = {65}, seat_of = {0}, first = {0, 1};
  const CacheView view = {
      .cu_q_lens = cu, .kv_lens = kv, .seat_of = seat_of, .first_step_page = first};
  EXPECT_DEATH(OwnPage(layer, view, 0, 2), "");
}

}  // namespace
}  // namespace latentd
