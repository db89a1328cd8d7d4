#pragma once

#include <string>
#include <vector>

namespace latentd {

// One row of numbers in a chart, value i at x = i.
struct ChartSeries {
  std::string name;    // in the legend; empty: not there
  std::string colour;  // as SVG writes it: "#4477aa"
  std::vector<double> values;
};

struct Chart {
  std::string title;
  std::string x_label;
  std::string y_label;
  std::vector<ChartSeries> series;
};

// Charts in two columns on one page, as an SVG file that needs nothing else. One thread.
class SvgFigure {
 public:
  // The series lie on top of each other, the first at the bottom; values are not negative.
  void AddStackedBars(const Chart& chart);
  // On a logarithmic y axis over at most six decades; values that are not positive end a line.
  void AddLogLines(const Chart& chart);

  std::string Text() const;

 private:
  std::string body_;
  int charts_ = 0;
};

// A colour of the scale from dark blue (0) over green to yellow (1), which greyscale and
// colour-blind eyes can order.
std::string ScaleColour(double share);

}  // namespace latentd
