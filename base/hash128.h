#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/str_format.h"

namespace latentd {

// A 128-bit hash of a stream of bytes, two multiply-and-fold lanes of 64 bits. It tells contents
// apart; it is no defence against someone who forges them. How the stream is cut into Adds matters.
class Hash128 {
 public:
  void Add(const void* data, size_t bytes) {
    const auto* at = static_cast<const unsigned char*>(data);
    AddWords(bytes, 0);
    for (; bytes >= 16; bytes -= 16, at += 16) {
      uint64_t words[2];
      std::memcpy(words, at, 16);
      AddWords(words[0], words[1]);
    }
    if (bytes > 0) {
      uint64_t words[2] = {0, 0};
      std::memcpy(words, at, bytes);
      AddWords(words[0], words[1]);
    }
  }

  // Of all that was added, 32 digits in lower case. Ends the stream.
  std::string Hex() {
    for (int i = 0; i < 4; ++i) AddWords(0, 0);
    return absl::StrFormat("%016x%016x", a_, b_);
  }

 private:
  static uint64_t Fold(uint64_t x, uint64_t y) {
    const unsigned __int128 product = static_cast<unsigned __int128>(x) * y;
    return static_cast<uint64_t>(product) ^ static_cast<uint64_t>(product >> 64);
  }
  // Odd constants: digits of pi. A lane is carried over as a sum, so that a product of zero forgets
  // nothing.
  void AddWords(uint64_t x, uint64_t y) {
    a_ = (a_ + x) * 0x243f6a8885a308d3ull + Fold(x ^ 0x13198a2e03707345ull, b_ ^ y);
    b_ = (b_ + y) * 0xa4093822299f31d1ull + Fold(y ^ 0x082efa98ec4e6c89ull, a_ ^ x);
  }

  uint64_t a_ = 0x452821e638d01377ull;
  uint64_t b_ = 0xbe5466cf34e90c6dull;
};

}  // namespace latentd
