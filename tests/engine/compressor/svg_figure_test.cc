#include "engine/compressor/svg_figure.h"

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace latentd {
namespace {

using ::testing::HasSubstr;

int Count(const std::string& text, const std::string& what) {
  int count = 0;
  for (size_t at = 0; (at = text.find(what, at)) != std::string::npos; ++at) ++count;
  return count;
}

TEST(SvgFigure, BarsStackAndZerosAreNotDrawn) {
  SvgFigure figure;
  figure.AddStackedBars({.title = "a < b & c",
                         .x_label = "layer",
                         .y_label = "bytes",
                         .series = {{"K", "#111111", {1, 0, 2}}, {"V", "#222222", {1, 3, 1}}}});
  const std::string text = figure.Text();
  EXPECT_THAT(text, HasSubstr("a &lt; b &amp; c"));
  EXPECT_EQ(Count(text, "fill='#111111'"), 1 + 2);  // the legend, and the two that are not 0
  EXPECT_EQ(Count(text, "fill='#222222'"), 1 + 3);
  EXPECT_EQ(Count(text, "<g "), Count(text, "</g>"));
  EXPECT_EQ(text.rfind("</svg>\n"), text.size() - 7);
}

TEST(SvgFigure, LinesEndWhereALogarithmDoes) {
  SvgFigure figure;
  figure.AddLogLines({.title = "energy", .series = {{"", "#333333", {1, 0.1, 0, 0.5}}}});
  const std::string text = figure.Text();
  const size_t begin = text.find("points='") + 8;
  EXPECT_EQ(Count(text.substr(begin, text.find('\'', begin) - begin), ","), 2);
  EXPECT_THAT(text, HasSubstr(">1e-03<"));
}

TEST(SvgFigure, ChartsStandInTwoColumns) {
  SvgFigure figure;
  for (int i = 0; i < 3; ++i) figure.AddStackedBars({.series = {{"K", "#111111", {1}}}});
  const std::string text = figure.Text();
  EXPECT_THAT(text, HasSubstr("translate(480 0)"));
  EXPECT_THAT(text, HasSubstr("translate(0 300)"));
  EXPECT_THAT(text, HasSubstr("viewBox='0 0 960 600'"));
}

TEST(ScaleColour, RunsFromDarkToLight) {
  EXPECT_EQ(ScaleColour(0), "#30126e");
  EXPECT_EQ(ScaleColour(1), "#f0d228");
  EXPECT_NE(ScaleColour(0.5), ScaleColour(0.6));
}

}  // namespace
}  // namespace latentd
