#pragma once

#include <string>
#include <string_view>

namespace latentd {

// Moves the text of `bytes` to the end of `text`: each maximal run of bytes that is the start of a
// character and does not go on as one, and each byte that starts none, becomes U+FFFD (Unicode
// 15.0, section 3.9, "U+FFFD substitution of maximal subparts"). Returns how many bytes were taken:
// all, but for up to three at the end that are the start of a character.
size_t AppendUtf8(std::string_view bytes, std::string* text);

bool IsUtf8(std::string_view bytes);

inline constexpr std::string_view kReplacementCharacter = "\xEF\xBF\xBD";

}  // namespace latentd
