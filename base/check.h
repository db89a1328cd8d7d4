#pragma once

namespace latentd {

// Prints the failed condition with its place and aborts.
[[noreturn]] void CheckFailed(const char* condition, const char* file, int line);

}  // namespace latentd

// For bugs of our own only; never for input, files, sizes or devices. Active in every build.
#define LATENTD_CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::latentd::CheckFailed(#condition, __FILE__, __LINE__))
