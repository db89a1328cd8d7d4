#pragma once

#include <cstddef>
#include <string>

#include "engine/checkpoint/checkpoint.h"

namespace latentd {

// Keeps the compiler from dropping the reads below.
inline volatile unsigned char last_byte_read;

inline void ReadBytes(const TensorView& view) {
  for (int64_t i = 0; i < view.bytes(); ++i) {
    last_byte_read = static_cast<unsigned char>(view.data[i]);
  }
}

// Reads every byte of every tensor that `checkpoint` promises, so that a sanitizer sees one that is
// not there.
inline void ReadEverything(const Checkpoint& checkpoint) {
  for (const char* name :
       {"token_embedding", "position_embedding", "embedding_norm.weight", "embedding_norm.bias",
        "final_norm.weight", "final_norm.bias", "lm_head"}) {
    if (const auto view = checkpoint.Find(name)) ReadBytes(*view);
  }
  for (int l = 0; l < checkpoint.config().num_layers; ++l) {
    for (const char* part : {"attention_norm", "q", "k", "v", "q_norm", "k_norm", "o", "mlp_norm",
                             "gate", "up", "down"}) {
      for (const char* kind : {".weight", ".bias"}) {
        const std::string name = "layers." + std::to_string(l) + "." + part + kind;
        if (const auto view = checkpoint.Find(name)) ReadBytes(*view);
      }
    }
  }
}

}  // namespace latentd
