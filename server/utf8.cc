#include "server/utf8.h"

#include <cstdint>

namespace latentd {

size_t FirstBadUtf8(const std::string& text) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<uint8_t>(text[i]) : 0u; };
  size_t i = 0;
  while (i < text.size()) {
    const unsigned lead = byte(i);
    const int length = lead < 0x80   ? 1
                       : lead < 0xc2 ? 0
                       : lead < 0xe0 ? 2
                       : lead < 0xf0 ? 3
                       : lead < 0xf5 ? 4
                                     : 0;
    if (length == 0) return i;
    for (int k = 1; k < length; ++k) {
      if ((byte(i + k) & 0xc0) != 0x80) return i;
    }
    const unsigned second = byte(i + 1);
    const bool overlong = (lead == 0xe0 && second < 0xa0) || (lead == 0xf0 && second < 0x90);
    const bool outside = (lead == 0xed && second >= 0xa0) || (lead == 0xf4 && second >= 0x90);
    if (length > 1 && (overlong || outside)) return i;
    i += length;
  }
  return i;
}

}  // namespace latentd
