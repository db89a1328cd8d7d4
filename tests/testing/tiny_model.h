#pragma once

#include <cstdint>
#include <string>

#include "kernels/dtype.h"

namespace latentd {

// A tiny random model of any family; weights are a function of `seed` and the shapes.
struct TinyModelOptions {
  std::string family = "llama";
  int layers = 2;
  int hidden = 32;
  int heads = 4;
  int kv_heads = 2;  // families without grouped heads take `heads` instead
  int head_dim = 16;
  int mlp_dim = 64;
  int vocab = 128;
  int max_context = 256;
  uint64_t seed = 1;
  DType dtype = DType::kF32;  // or kF16, kBF16
};

// Writes the model as a Hugging Face folder without a tokenizer (config.json, model.safetensors)
// into a new temporary folder, which goes when the process ends, and returns its path. Aborts when
// that fails.
std::string WriteTinyModel(const TinyModelOptions& options);

}  // namespace latentd
