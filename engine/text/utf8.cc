#include "engine/text/utf8.h"

#include <cstdint>

namespace latentd {
namespace {

// What may follow a lead byte: the length of the character, and the range of its second byte
// (Unicode 15.0, table 3-7). Length 0: no character starts so.
struct Lead {
  int length = 0;
  uint8_t low = 0x80, high = 0xBF;
};

Lead LeadOf(uint8_t byte) {
  if (byte < 0x80) return {.length = 1};
  if (byte < 0xC2) return {};
  if (byte < 0xE0) return {.length = 2};
  if (byte == 0xE0) return {.length = 3, .low = 0xA0};
  if (byte == 0xED) return {.length = 3, .high = 0x9F};
  if (byte < 0xF0) return {.length = 3};
  if (byte == 0xF0) return {.length = 4, .low = 0x90};
  if (byte < 0xF4) return {.length = 4};
  if (byte == 0xF4) return {.length = 4, .high = 0x8F};
  return {};
}

}  // namespace

size_t AppendUtf8(std::string_view bytes, std::string* text) {
  size_t at = 0;
  while (at < bytes.size()) {
    const Lead lead = LeadOf(static_cast<uint8_t>(bytes[at]));
    size_t size = 1;
    while (size < static_cast<size_t>(lead.length) && at + size < bytes.size()) {
      const auto byte = static_cast<uint8_t>(bytes[at + size]);
      const bool fits = size == 1 ? byte >= lead.low && byte <= lead.high : (byte & 0xC0) == 0x80;
      if (!fits) break;
      ++size;
    }
    if (size == static_cast<size_t>(lead.length)) {
      text->append(bytes.substr(at, size));
    } else if (lead.length > 0 && at + size == bytes.size()) {
      return at;
    } else {
      text->append(kReplacementCharacter);
    }
    at += size;
  }
  return at;
}

bool IsUtf8(std::string_view bytes) {
  std::string text;
  return AppendUtf8(bytes, &text) == bytes.size() && text == bytes;
}

}  // namespace latentd
