#pragma once

#include <string>

#include "absl/time/time.h"

namespace latentd {

// One line on stderr about long work: share done and time left. On a terminal the line is redrawn;
// elsewhere a new line comes every tenth. One thread.
class ProgressLine {
 public:
  explicit ProgressLine(std::string what);
  ~ProgressLine();  // ends the line
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  // `share` in [0, 1]. The first one is where the work begins, be it taken up in its middle.
  void Show(double share);

 private:
  const std::string what_;
  const absl::Time start_;
  const bool terminal_;
  double first_ = -1;  // share; -1: none yet
  int shown_ = -1;     // in steps of a percent, or of a tenth
};

}  // namespace latentd
