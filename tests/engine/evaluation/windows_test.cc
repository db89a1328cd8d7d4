#include "engine/evaluation/windows.h"

#include <numeric>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

std::vector<int32_t> CountingIds(int count) {
  std::vector<int32_t> ids(count);
  std::iota(ids.begin(), ids.end(), 0);
  return ids;
}

// First and last counted token of each window of a text that counts up.
std::vector<std::pair<int, int>> Counted(int text, const WindowOptions& options) {
  const std::vector<int32_t> ids = CountingIds(text);
  const auto windows = SplitIntoWindows(ids, options);
  EXPECT_TRUE(windows.ok()) << windows.status();
  std::vector<std::pair<int, int>> counted;
  if (!windows.ok()) return counted;
  for (const TextWindow& window : *windows) {
    EXPECT_EQ(static_cast<int>(window.tokens.size()), options.window);
    counted.emplace_back(window.tokens[window.first_counted], window.tokens.back());
  }
  return counted;
}

std::string Error(int text, const WindowOptions& options) {
  return std::string(SplitIntoWindows(CountingIds(text), options).status().message());
}

TEST(Windows, AllThatFitCountEveryTokenButTheirFirst) {
  EXPECT_THAT(Counted(25, {.window = 10}), ElementsAre(Pair(1, 9), Pair(11, 19)));
}

TEST(Windows, SecondHalfCountsAsLlamaPerplexityDoes) {
  // Of a window of n it counts n - n / 2 - 1 tokens.
  EXPECT_THAT(Counted(25, {.window = 10, .first_windows = 1, .second_half = true}),
              ElementsAre(Pair(6, 9)));
}

TEST(Windows, AreSpacedFromTheFirstTokenToTheLast) {
  EXPECT_THAT(Counted(31, {.window = 5, .windows = 3}),
              ElementsAre(Pair(1, 4), Pair(14, 17), Pair(27, 30)));
  EXPECT_THAT(Counted(31, {.window = 5, .windows = 1}), ElementsAre(Pair(1, 4)));
}

TEST(Windows, StrideCountsEachTokenOnce) {
  EXPECT_THAT(Counted(19, {.window = 10, .stride = 4}),
              ElementsAre(Pair(1, 9), Pair(10, 13), Pair(14, 17)));
  EXPECT_THAT(Counted(19, {.window = 10, .first_windows = 2, .stride = 4}),
              ElementsAre(Pair(1, 9), Pair(10, 13)));
}

TEST(Windows, TooShortATextIsNamedWithBothNumbers) {
  EXPECT_THAT(Error(9, {.window = 10}), HasSubstr("has 9 tokens, 1 window of 10 needs 10"));
  EXPECT_THAT(Error(29, {.window = 10, .first_windows = 3}),
              HasSubstr("has 29 tokens, 3 windows of 10 need 30"));
  EXPECT_THAT(Error(17, {.window = 10, .first_windows = 3, .stride = 4}),
              HasSubstr("has 17 tokens, 3 windows of 10 need 18"));
}

TEST(Windows, SpacedWindowsThatWouldOverlapAreRefused) {
  EXPECT_THAT(Counted(30, {.window = 10, .windows = 3}),
              ElementsAre(Pair(1, 9), Pair(11, 19), Pair(21, 29)));
  EXPECT_EQ(Error(29, {.window = 10, .windows = 3}),
            "the text has 29 tokens, 3 windows of 10 need 30");
}

TEST(Windows, ContradictionsAreNamed) {
  EXPECT_THAT(Error(99, {.window = 10, .windows = 2, .first_windows = 3}),
              HasSubstr("--windows is 2 and --first-windows is 3"));
  EXPECT_THAT(Error(99, {.window = 10, .stride = 10}), HasSubstr("--stride is 10"));
  EXPECT_THAT(Error(99, {.window = 10, .windows = 2, .stride = 3}), HasSubstr("--windows is 2"));
  EXPECT_THAT(Error(99, {.window = 10, .stride = 3, .second_half = true}),
              HasSubstr("second-half"));
}

TEST(Windows, AreCheckedAgainstTheEngine) {
  const std::vector<int32_t> ids = CountingIds(20);
  const TextWindow window{.tokens = ids};
  EngineInfo info{.model_name = "m", .vocab_size = 20, .max_context = 20};
  EXPECT_TRUE(CheckWindows({window}, info).ok());
  info.max_context = 19;
  EXPECT_THAT(CheckWindows({window}, info).message(),
              HasSubstr("--window is 20, the context is 19"));
  info.max_context = 20;
  info.vocab_size = 19;
  EXPECT_THAT(CheckWindows({window}, info).message(),
              HasSubstr("token id 19, the vocabulary of m has 19"));
}

TEST(Windows, AStepHoldsItsRowsAndTheBlocksOfTheWholeWindow) {
  const std::vector<int32_t> ids = CountingIds(130);
  const Batch batch = WindowStep({.tokens = ids}, 100, 120);
  EXPECT_EQ(batch.num_tokens(), 20);
  EXPECT_EQ(batch.positions.front(), 100);
  EXPECT_EQ(batch.slots.front(), 100);
  EXPECT_THAT(batch.kv_lens, ElementsAre(120));
  EXPECT_THAT(batch.block_table, ElementsAre(0, 1, 2));
  EXPECT_THAT(batch.seats, ElementsAre(0));
}

}  // namespace
}  // namespace latentd
