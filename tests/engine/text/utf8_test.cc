#include "engine/text/utf8.h"

#include "gtest/gtest.h"

namespace latentd {
namespace {

struct Case {
  std::string bytes, text;
  size_t taken;
};

// The examples of Unicode 15.0, tables 3-8 to 3-11, and what is held back.
TEST(Utf8Test, MaximalSubpartsBecomeOneReplacementEach) {
  const Case cases[] = {
      {"", "", 0},
      {"a\u00e9\u4e2d\U0001F642", "a\u00e9\u4e2d\U0001F642", 10},
      {"\xC0\xAF\xE0\x80\xBF\xF0\x81\x82\x41", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA",
       9},
      {"\xED\xA0\x80\xED\xBF\xBF\xED\xAF\x41", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA",
       9},
      {"\xF4\x91\x92\x93\xFF\x41\x80\xBF\x42", "\uFFFD\uFFFD\uFFFD\uFFFD\uFFFDA\uFFFD\uFFFDB", 9},
      {"\xE1\x80\xE2\xF0\x91\x92\xF1\xBF\x41", "\uFFFD\uFFFD\uFFFD\uFFFDA", 9},
      {"a\xF0\x9F\x99", "a", 1},
      {"a\xE4", "a", 1},
      {"\x80", "\uFFFD", 1},
  };
  for (const Case& c : cases) {
    std::string text;
    EXPECT_EQ(AppendUtf8(c.bytes, &text), c.taken);
    EXPECT_EQ(text, c.text);
  }
}

TEST(Utf8Test, IsUtf8) {
  EXPECT_TRUE(IsUtf8(""));
  EXPECT_TRUE(IsUtf8("\u00e9\uFFFD"));
  EXPECT_FALSE(IsUtf8("\xE9"));
  EXPECT_FALSE(IsUtf8("a\xFFz"));
}

}  // namespace
}  // namespace latentd
