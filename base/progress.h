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

  void Show(double share);  // in [0, 1]

 private:
  const std::string what_;
  const absl::Time start_;
  const bool terminal_;
  int shown_ = -1;  // in steps of a percent, or of a tenth
};

}  // namespace latentd
