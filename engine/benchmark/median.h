#pragma once

#include <algorithm>
#include <vector>

namespace latentd {

// The larger of the two middle ones of an even number of values, of which there must be one.
inline double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace latentd
