#include "engine/text/stop_string_filter.h"

#include "base/random.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

struct Outcome {
  std::string text, matched;
  bool operator==(const Outcome&) const = default;
};

// The definition: the first position at which some stop string ends, the longest of those.
Outcome Expected(const std::string& text, const std::vector<std::string>& stops, bool include) {
  for (size_t end = 1; end <= text.size(); ++end) {
    std::string found;
    for (const std::string& stop : stops) {
      if (stop.size() > found.size() && stop.size() <= end &&
          text.compare(end - stop.size(), stop.size(), stop) == 0) {
        found = stop;
      }
    }
    if (!found.empty()) return {text.substr(0, include ? end : end - found.size()), found};
  }
  return {text, ""};
}

TEST(StopStringFilterTest, TheOutcomeDoesNotDependOnTheCuts) {
  for (uint64_t seed = 0; seed < 3000; ++seed) {
    uint64_t counter = 0;
    auto draw = [&](uint64_t n) { return RandomBits(seed, counter++) % n; };
    auto random_string = [&](size_t size) {
      std::string s;
      while (s.size() < size) s += static_cast<char>('a' + draw(2));
      return s;
    };
    std::vector<std::string> stops(draw(4));
    for (std::string& stop : stops) stop = random_string(draw(7));
    const std::string text = random_string(draw(30));
    const bool include = draw(2);

    StopStringFilter filter(stops, include);
    Outcome outcome;
    for (size_t at = 0; at < text.size();) {
      const size_t size = 1 + draw(5);
      const auto result = filter.Push(std::string_view(text).substr(at, size));
      outcome.text += result.text;
      if (result.stopped) outcome.matched = result.matched;
      EXPECT_EQ(result.stopped, !result.matched.empty());
      at += size;
    }
    outcome.text += filter.Flush();
    const Outcome expected = Expected(text, stops, include);
    ASSERT_EQ(outcome.text, expected.text) << "seed " << seed;
    ASSERT_EQ(outcome.matched, expected.matched) << "seed " << seed;
  }
}

TEST(StopStringFilterTest, HoldsBackNoMoreThanMayBecomeAStop) {
  StopStringFilter filter({"\nUser:", "###"}, false);
  EXPECT_EQ(filter.Push("one\nUs").text, "one");
  EXPECT_EQ(filter.Push("ual #").text, "\nUsual ");
  EXPECT_EQ(filter.Push("x##").text, "#x");
  EXPECT_EQ(filter.Flush(), "##");
}

TEST(StopStringFilterTest, NothingFollowsAStop) {
  StopStringFilter filter({"end"}, true);
  const auto result = filter.Push("the end. more");
  EXPECT_TRUE(result.stopped);
  EXPECT_EQ(result.text, "the end");
  EXPECT_EQ(filter.Push("end").text, "");
  EXPECT_EQ(filter.Flush(), "");
}

TEST(StopStringFilterTest, WithoutStopStringsTextPassesAtOnce) {
  StopStringFilter filter({"", ""}, false);
  EXPECT_EQ(filter.Push("abc").text, "abc");
  EXPECT_EQ(filter.Flush(), "");
}

}  // namespace
}  // namespace latentd
