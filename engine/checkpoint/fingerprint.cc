#include <cstring>
#include <string>

#include "absl/strings/str_format.h"
#include "base/message.h"
#include "engine/checkpoint/checkpoint.h"

namespace latentd {
namespace {

// A 128-bit hash of a stream of bytes, two multiply-and-fold lanes of 64 bits. It tells models
// apart; it is no defence against someone who forges one.
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

}  // namespace

std::string Fingerprint(const Checkpoint& checkpoint) {
  const ModelConfig& config = checkpoint.config();
  Hash128 hash;
  const std::string facts = Message(
      config.family, " layers ", config.num_layers, " hidden ", config.hidden_dim, " heads ",
      config.num_heads, " kv_heads ", config.num_kv_heads, " head_dim ", config.head_dim, " theta ",
      config.position == PositionKind::kRope ? config.rope.theta : 0.0f);
  hash.Add(facts.data(), facts.size());
  for (int layer = 0; layer < config.num_layers; ++layer) {
    for (const char* projection : {"k.weight", "k.bias", "v.weight", "v.bias"}) {
      const auto view = checkpoint.Find(Message("layers.", layer, ".", projection));
      if (view.has_value()) hash.Add(view->data, view->bytes());
    }
  }
  return hash.Hex();
}

}  // namespace latentd
