#pragma once

#include <string>
#include <string_view>

#include "absl/strings/str_cat.h"

namespace latentd {
namespace message_internal {

template <typename T>
const T& Piece(const T& value) {
  return value;
}
inline absl::string_view Piece(const std::string_view& text) { return {text.data(), text.size()}; }

}  // namespace message_internal

// absl::StrCat that takes std::string_view as well: the distributions build Abseil with a
// string_view of its own.
template <typename... Args>
std::string Message(const Args&... args) {
  return absl::StrCat(message_internal::Piece(args)...);
}

}  // namespace latentd
