#pragma once

#include <cstddef>
#include <string>

namespace latentd {

// Offset of the first byte that belongs to no UTF-8 character (RFC 3629); text.size() when all do.
size_t FirstBadUtf8(const std::string& text);

}  // namespace latentd
