#pragma once

#include <sys/resource.h>

#include <csignal>

#include "base/check.h"

namespace latentd {

// As long as it lives, a write beyond `bytes` of a file fails, as on a full disk.
class LimitedDisk {
 public:
  explicit LimitedDisk(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    LATENTD_CHECK(getrlimit(RLIMIT_FSIZE, &before_) == 0);
    const rlimit limited = {.rlim_cur = bytes, .rlim_max = before_.rlim_max};
    LATENTD_CHECK(setrlimit(RLIMIT_FSIZE, &limited) == 0);
  }
  ~LimitedDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }
  LimitedDisk(const LimitedDisk&) = delete;
  LimitedDisk& operator=(const LimitedDisk&) = delete;

 private:
  void (*handler_)(int);
  rlimit before_;
};

}  // namespace latentd
