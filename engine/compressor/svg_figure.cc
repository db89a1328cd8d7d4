#include "engine/compressor/svg_figure.h"

#include <algorithm>
#include <cmath>
#include <functional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace latentd {
namespace {

// A chart takes kWidth x kHeight; its plot area lies inside these margins.
constexpr double kWidth = 480, kHeight = 300;
constexpr double kLeft = 80, kRight = 14, kTop = 46, kBottom = 44;
constexpr double kPlotWidth = kWidth - kLeft - kRight, kPlotHeight = kHeight - kTop - kBottom;
constexpr int kColumns = 2;
constexpr double kDecades = 6;

std::string Escaped(const std::string& text) {
  return absl::StrReplaceAll(text, {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}});
}

// 1, 2 or 5 times a power of ten, so that about five steps reach `largest`.
double NiceStep(double largest) {
  const double power = std::pow(10.0, std::floor(std::log10(largest / 5)));
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (largest / (power * factor) <= 6) return power * factor;
  }
  return power * 10;
}

size_t Length(const Chart& chart) {
  size_t length = 1;
  for (const ChartSeries& series : chart.series) length = std::max(length, series.values.size());
  return length;
}

// The frame of a chart, its labels and ticks. Coordinates are those of the chart.
class Canvas {
 public:
  // Places of y ticks from the bottom (0) to the top (1), and their labels.
  struct Tick {
    double place;
    std::string label;
  };

  Canvas(const Chart& chart, size_t length) : length_(static_cast<double>(length)) {
    Label(kLeft, 16, "start", "font-weight='bold'", chart.title);
    Label(kLeft + kPlotWidth / 2, kHeight - 8, "middle", "", chart.x_label);
    absl::StrAppendFormat(&text_,
                          "<text transform='translate(12 %.1f) rotate(-90)' "
                          "text-anchor='middle'>%s</text>\n",
                          kTop + kPlotHeight / 2, Escaped(chart.y_label));
    double at = kLeft;
    for (const ChartSeries& series : chart.series) {
      if (series.name.empty()) continue;
      Rectangle(at, 26, 10, 10, series.colour);
      Label(at + 14, 35, "start", "", series.name);
      at += 24 + 6.5 * static_cast<double>(series.name.size());
    }
  }

  double X(double i) const { return kLeft + kPlotWidth * i / length_; }  // left edge of item i
  double Y(double share) const { return kTop + kPlotHeight * (1 - share); }

  void Rectangle(double x, double y, double width, double height, const std::string& colour) {
    absl::StrAppendFormat(&text_,
                          "<rect x='%.2f' y='%.2f' width='%.2f' height='%.2f' fill='%s'/>\n", x, y,
                          width, height, colour);
  }

  void Line(const std::string& points, const std::string& colour) {
    absl::StrAppend(&text_, "<polyline points='", points, "' fill='none' stroke='", colour,
                    "' stroke-width='1'/>\n");
  }

  void Axes(const std::vector<Tick>& ticks) {
    for (const Tick& tick : ticks) {
      absl::StrAppendFormat(&text_,
                            "<path d='M%.1f %.1fh%.1f' stroke='#888' stroke-opacity='.35'/>\n",
                            kLeft, Y(tick.place), kPlotWidth);
      Label(kLeft - 5, Y(tick.place) + 4, "end", "", tick.label);
    }
    const int step = std::max(1, static_cast<int>(NiceStep(length_)));
    for (int i = 0; i < length_; i += step) {
      Label(X(i + 0.5), kTop + kPlotHeight + 15, "middle", "", absl::StrCat(i));
    }
    absl::StrAppendFormat(&text_, "<path d='M%.1f %.1fv%.1fh%.1f' fill='none' stroke='#444'/>\n",
                          kLeft, kTop, kPlotHeight, kPlotWidth);
  }

  const std::string& text() const { return text_; }

 private:
  void Label(double x, double y, const char* anchor, const char* style, const std::string& text) {
    absl::StrAppendFormat(&text_, "<text x='%.1f' y='%.1f' text-anchor='%s' %s>%s</text>\n", x, y,
                          anchor, style, Escaped(text));
  }

  const double length_;
  std::string text_;
};

std::string Place(int chart, const std::string& body) {
  const int row = chart / kColumns, column = chart % kColumns;
  return absl::StrFormat("<g transform='translate(%.0f %.0f)'>\n%s</g>\n", kWidth * column,
                         kHeight * row, body);
}

}  // namespace

void SvgFigure::AddStackedBars(const Chart& chart) {
  const size_t length = Length(chart);
  std::vector<double> sums(length);
  for (const ChartSeries& series : chart.series) {
    for (size_t i = 0; i < series.values.size(); ++i) sums[i] += series.values[i];
  }
  const double largest = std::max(*std::max_element(sums.begin(), sums.end()), 1e-12);
  const double top = largest * 1.02;
  Canvas canvas(chart, length);
  std::vector<Canvas::Tick> ticks;
  const double step = NiceStep(largest);
  for (int i = 0; i * step <= top; ++i) {
    ticks.push_back({i * step / top, absl::StrFormat("%.4g", i * step)});
  }
  canvas.Axes(ticks);
  std::vector<double> below(length);
  const double bar = kPlotWidth / static_cast<double>(length);
  for (const ChartSeries& series : chart.series) {
    for (size_t i = 0; i < series.values.size(); ++i) {
      const double value = series.values[i];
      if (value <= 0) continue;
      below[i] += value;
      canvas.Rectangle(canvas.X(static_cast<double>(i)) + bar * 0.08, canvas.Y(below[i] / top),
                       bar * 0.84, kPlotHeight * value / top, series.colour);
    }
  }
  body_ += Place(charts_++, canvas.text());
}

void SvgFigure::AddLogLines(const Chart& chart) {
  const size_t length = Length(chart);
  double top = -300;
  for (const ChartSeries& series : chart.series) {
    for (const double value : series.values) {
      if (value > 0) top = std::max(top, std::ceil(std::log10(value)));
    }
  }
  Canvas canvas(chart, length);
  std::vector<Canvas::Tick> ticks;
  for (int decade = 0; decade <= kDecades; ++decade) {
    ticks.push_back({1.0 - decade / kDecades, absl::StrFormat("%.0e", std::pow(10, top - decade))});
  }
  canvas.Axes(ticks);
  for (const ChartSeries& series : chart.series) {
    std::string points;
    for (size_t i = 0; i < series.values.size() && series.values[i] > 0; ++i) {
      const double below = top - std::log10(series.values[i]);
      absl::StrAppendFormat(&points, "%.1f,%.1f ", canvas.X(static_cast<double>(i) + 0.5),
                            canvas.Y(std::max(0.0, 1 - below / kDecades)));
    }
    canvas.Line(points, series.colour);
  }
  body_ += Place(charts_++, canvas.text());
}

std::string SvgFigure::Text() const {
  const double width = kWidth * kColumns;
  const int rows = (charts_ + kColumns - 1) / kColumns;
  const double height = kHeight * rows;
  return absl::StrFormat(
      "<svg xmlns='http://www.w3.org/2000/svg' viewBox='0 0 %.0f %.0f' width='%.0f' height='%.0f' "
      "font-family='sans-serif' font-size='12'>\n"
      "<rect width='100%%' height='100%%' fill='white'/>\n%s</svg>\n",
      width, height, width, height, body_);
}

std::string ScaleColour(double share) {
  constexpr double kStops[][3] = {{48, 18, 110}, {33, 113, 140}, {60, 170, 110}, {240, 210, 40}};
  constexpr int kLast = 3;
  const double place = std::clamp(share, 0.0, 1.0) * kLast;
  const int stop = std::min(static_cast<int>(place), kLast - 1);
  const auto mix = [&](int c) {
    return static_cast<int>(
        std::lround(kStops[stop][c] + (kStops[stop + 1][c] - kStops[stop][c]) * (place - stop)));
  };
  return absl::StrFormat("#%02x%02x%02x", mix(0), mix(1), mix(2));
}

}  // namespace latentd
