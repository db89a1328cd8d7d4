#pragma once

#include <cstdint>
#include <cstring>
#include <string_view>
#include <vector>

namespace latentd {

// A safetensors file of this header and that many zero bytes of data; nothing is checked.
inline std::vector<std::byte> SafetensorsBytes(std::string_view header, size_t data_bytes) {
  std::vector<std::byte> file(8 + header.size() + data_bytes);
  const uint64_t length = header.size();
  std::memcpy(file.data(), &length, 8);
  std::memcpy(file.data() + 8, header.data(), header.size());
  return file;
}

}  // namespace latentd
