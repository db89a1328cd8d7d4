#pragma once

#include <sys/mman.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>
#include <string>

#include "base/check.h"

namespace latentd {

// A fuzzer's input as a file that the readers can open and map; nothing touches the disk. Lives as
// long as the object.
class InputFile {
 public:
  InputFile(const uint8_t* data, size_t size) : fd_(memfd_create("input", MFD_CLOEXEC)) {
    LATENTD_CHECK(fd_ >= 0);
    LATENTD_CHECK(write(fd_, data, size) == static_cast<ssize_t>(size));
  }
  ~InputFile() { close(fd_); }
  InputFile(const InputFile&) = delete;
  InputFile& operator=(const InputFile&) = delete;

  std::string path() const { return "/proc/self/fd/" + std::to_string(fd_); }

 private:
  const int fd_;
};

}  // namespace latentd
