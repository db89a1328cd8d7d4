#include "base/progress.h"

#include <unistd.h>

#include <cstdio>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/time/clock.h"

namespace latentd {

ProgressLine::ProgressLine(std::string what)
    : what_(std::move(what)), start_(absl::Now()), terminal_(isatty(STDERR_FILENO)) {}

ProgressLine::~ProgressLine() {
  if (terminal_ && shown_ >= 0) std::fputc('\n', stderr);
}

void ProgressLine::Show(double share) {
  if (first_ < 0) first_ = share;
  const int steps = static_cast<int>(share * (terminal_ ? 100 : 10));
  if (steps == shown_) return;
  shown_ = steps;
  const double elapsed = absl::ToDoubleSeconds(absl::Now() - start_);
  std::string line = absl::StrFormat("%s: %3.0f %%", what_, share * 100);
  if (share > first_) {
    absl::StrAppendFormat(&line, ", %.0f s, %.0f s left", elapsed,
                          elapsed * (1 - share) / (share - first_));
  }
  std::fprintf(stderr, terminal_ ? "\r%s   " : "%s\n", line.c_str());
  std::fflush(stderr);
}

}  // namespace latentd
