#include "server/response_text.h"

#include "gtest/gtest.h"
#include "tests/testing/fake_text.h"

namespace latentd {
namespace {

struct Shown {
  std::string text;
  bool stopped = false;
  int num_tokens = 0;
};

Shown ShowAll(const std::string& bytes, StopConditions stop) {
  const FakeTokenizer tokenizer;
  ResponseText text(&tokenizer, {'p'}, std::move(stop));
  Shown shown;
  for (const char c : bytes) {
    const ResponseText::Delta delta = *text.Push(static_cast<uint8_t>(c));
    EXPECT_TRUE(!shown.stopped || delta.text.empty());
    shown.text += delta.text;
    shown.stopped |= delta.stopped;
  }
  const ResponseText::Delta rest = *text.Flush();
  shown.text += rest.text;
  shown.stopped |= rest.stopped;
  shown.num_tokens = text.num_tokens();
  return shown;
}

TEST(ResponseTextTest, WithoutConditionsTheTextIsTheDecoding) {
  EXPECT_EQ(ShowAll("caf\xc3\xa9 \xf0\x9f\x99\x82", {}).text, "caf\xc3\xa9 \xf0\x9f\x99\x82");
  EXPECT_EQ(ShowAll("cut \xf0\x9f", {}).text, "cut \xef\xbf\xbd");
  EXPECT_EQ(ShowAll("", {}).text, "");
}

TEST(ResponseTextTest, TextEndsBeforeTheStopStringAndHeldTextComesOut) {
  const Shown stopped = ShowAll("one END two", {.strings = {"END"}});
  EXPECT_EQ(stopped.text, "one ");
  EXPECT_TRUE(stopped.stopped);
  EXPECT_EQ(stopped.num_tokens, 7);
  EXPECT_EQ(ShowAll("one EN", {.strings = {"END"}}).text, "one EN");
  EXPECT_EQ(ShowAll("one END", {.strings = {"END"}, .include_stop = true}).text, "one END");
}

TEST(ResponseTextTest, StopStringsCountFromMinTokensOn) {
  EXPECT_EQ(ShowAll("XaXbX", {.strings = {"X"}, .min_tokens = 3}).text, "Xa");
  EXPECT_EQ(ShowAll("XaXbX", {.strings = {"X"}, .min_tokens = 4}).text, "XaXb");
  EXPECT_FALSE(ShowAll("XaXbX", {.strings = {"X"}, .min_tokens = 6}).stopped);
}

TEST(ResponseTextTest, AStopTokenHasNoTextUnlessAskedFor) {
  EXPECT_EQ(ShowAll("ab.", {.token_ids = {'.'}}).text, "ab");
  EXPECT_EQ(ShowAll("ab.", {.token_ids = {'.'}, .include_stop = true}).text, "ab.");
}

}  // namespace
}  // namespace latentd
