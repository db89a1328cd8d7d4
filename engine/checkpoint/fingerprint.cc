#include <string>

#include "base/hash128.h"
#include "base/message.h"
#include "engine/checkpoint/checkpoint.h"

namespace latentd {
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
