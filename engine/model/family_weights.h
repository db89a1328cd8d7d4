#pragma once

#include <algorithm>
#include <array>
#include <string_view>

#include "engine/model/families.h"

// The weights of each family: their canonical names, and where either file format keeps them.
// Included by families.cc alone.
namespace latentd::family_weights {

using enum Extent;
using enum Presence;

constexpr WeightRule Matrix(std::string_view name, std::string_view hf, std::string_view gguf,
                            Extent rows, Extent cols, RotaryRows rotary = RotaryRows::kNone) {
  return {.name = name, .hf = hf, .gguf = gguf, .rows = rows, .cols = cols, .rotary = rotary};
}

constexpr WeightRule Vector(std::string_view name, std::string_view hf, std::string_view gguf,
                            Extent cols, Presence presence = kAlways,
                            RotaryRows rotary = RotaryRows::kNone) {
  return {
      .name = name, .hf = hf, .gguf = gguf, .cols = cols, .presence = presence, .rotary = rotary};
}

inline constexpr WeightRule kLmHead = {.name = "lm_head",
                                       .hf = "lm_head.weight",
                                       .gguf = "output.weight",
                                       .rows = kVocab,
                                       .cols = kHidden,
                                       .presence = kUntied};

// The Llama shape: RMS norms before each half, RoPE, a gated MLP.
constexpr auto LlamaWeights(Presence qkv_bias) {
  return std::array{
      Matrix("token_embedding", "embed_tokens.weight", "token_embd.weight", kVocab, kHidden),
      Vector("final_norm.weight", "norm.weight", "output_norm.weight", kHidden),
      kLmHead,
      Vector("layers.N.attention_norm.weight", "layers.N.input_layernorm.weight",
             "blk.N.attn_norm.weight", kHidden),
      Matrix("layers.N.q.weight", "layers.N.self_attn.q_proj.weight", "blk.N.attn_q.weight", kQuery,
             kHidden, RotaryRows::kQuery),
      Matrix("layers.N.k.weight", "layers.N.self_attn.k_proj.weight", "blk.N.attn_k.weight",
             kKeyValue, kHidden, RotaryRows::kKey),
      Matrix("layers.N.v.weight", "layers.N.self_attn.v_proj.weight", "blk.N.attn_v.weight",
             kKeyValue, kHidden),
      Matrix("layers.N.o.weight", "layers.N.self_attn.o_proj.weight", "blk.N.attn_output.weight",
             kHidden, kQuery),
      Vector("layers.N.q.bias", "layers.N.self_attn.q_proj.bias", "blk.N.attn_q.bias", kQuery,
             qkv_bias, RotaryRows::kQuery),
      Vector("layers.N.k.bias", "layers.N.self_attn.k_proj.bias", "blk.N.attn_k.bias", kKeyValue,
             qkv_bias, RotaryRows::kKey),
      Vector("layers.N.v.bias", "layers.N.self_attn.v_proj.bias", "blk.N.attn_v.bias", kKeyValue,
             qkv_bias),
      Vector("layers.N.o.bias", "layers.N.self_attn.o_proj.bias", "blk.N.attn_output.bias", kHidden,
             kOptional),
      Vector("layers.N.mlp_norm.weight", "layers.N.post_attention_layernorm.weight",
             "blk.N.ffn_norm.weight", kHidden),
      Matrix("layers.N.gate.weight", "layers.N.mlp.gate_proj.weight", "blk.N.ffn_gate.weight", kMlp,
             kHidden),
      Matrix("layers.N.up.weight", "layers.N.mlp.up_proj.weight", "blk.N.ffn_up.weight", kMlp,
             kHidden),
      Matrix("layers.N.down.weight", "layers.N.mlp.down_proj.weight", "blk.N.ffn_down.weight",
             kHidden, kMlp),
      Vector("layers.N.gate.bias", "layers.N.mlp.gate_proj.bias", "blk.N.ffn_gate.bias", kMlp,
             kOptional),
      Vector("layers.N.up.bias", "layers.N.mlp.up_proj.bias", "blk.N.ffn_up.bias", kMlp, kOptional),
      Vector("layers.N.down.bias", "layers.N.mlp.down_proj.bias", "blk.N.ffn_down.bias", kHidden,
             kOptional),
  };
}
inline constexpr auto kLlama = LlamaWeights(kOptional);
inline constexpr auto kQwen2 = LlamaWeights(kAlways);

// Llama's weights and norms of each head of q and k.
constexpr auto Qwen3Weights() {
  std::array<WeightRule, kLlama.size() + 2> weights;
  std::copy(kLlama.begin(), kLlama.end(), weights.begin());
  weights[kLlama.size()] = Vector("layers.N.q_norm.weight", "layers.N.self_attn.q_norm.weight",
                                  "blk.N.attn_q_norm.weight", kHead);
  weights[kLlama.size() + 1] = Vector("layers.N.k_norm.weight", "layers.N.self_attn.k_norm.weight",
                                      "blk.N.attn_k_norm.weight", kHead);
  return weights;
}
inline constexpr auto kQwen3 = Qwen3Weights();

// GPT-2 keeps its linear layers [in, out] in Hugging Face files, and q, k and v as one tensor in
// both formats.
constexpr WeightRule Gpt2Matrix(std::string_view name, std::string_view hf, std::string_view gguf,
                                Extent rows, Extent cols, RowSlice slice = RowSlice::kAll) {
  return {.name = name,
          .hf = hf,
          .gguf = gguf,
          .rows = rows,
          .cols = cols,
          .slice = slice,
          .hf_transposed = true};
}
constexpr WeightRule Gpt2Qkv(std::string_view name, Extent rows, RowSlice slice) {
  return Gpt2Matrix(name, "h.N.attn.c_attn.weight", "blk.N.attn_qkv.weight", rows, kHidden, slice);
}
constexpr WeightRule Gpt2QkvBias(std::string_view name, Extent cols, RowSlice slice) {
  return {.name = name,
          .hf = "h.N.attn.c_attn.bias",
          .gguf = "blk.N.attn_qkv.bias",
          .cols = cols,
          .slice = slice};
}

inline constexpr auto kGpt2 = std::array{
    Matrix("token_embedding", "wte.weight", "token_embd.weight", kVocab, kHidden),
    Matrix("position_embedding", "wpe.weight", "position_embd.weight", kContext, kHidden),
    Vector("final_norm.weight", "ln_f.weight", "output_norm.weight", kHidden),
    Vector("final_norm.bias", "ln_f.bias", "output_norm.bias", kHidden),
    kLmHead,
    Vector("layers.N.attention_norm.weight", "h.N.ln_1.weight", "blk.N.attn_norm.weight", kHidden),
    Vector("layers.N.attention_norm.bias", "h.N.ln_1.bias", "blk.N.attn_norm.bias", kHidden),
    Gpt2Qkv("layers.N.q.weight", kQuery, RowSlice::kQuery),
    Gpt2Qkv("layers.N.k.weight", kKeyValue, RowSlice::kKey),
    Gpt2Qkv("layers.N.v.weight", kKeyValue, RowSlice::kValue),
    Gpt2QkvBias("layers.N.q.bias", kQuery, RowSlice::kQuery),
    Gpt2QkvBias("layers.N.k.bias", kKeyValue, RowSlice::kKey),
    Gpt2QkvBias("layers.N.v.bias", kKeyValue, RowSlice::kValue),
    Gpt2Matrix("layers.N.o.weight", "h.N.attn.c_proj.weight", "blk.N.attn_output.weight", kHidden,
               kQuery),
    Vector("layers.N.o.bias", "h.N.attn.c_proj.bias", "blk.N.attn_output.bias", kHidden),
    Vector("layers.N.mlp_norm.weight", "h.N.ln_2.weight", "blk.N.ffn_norm.weight", kHidden),
    Vector("layers.N.mlp_norm.bias", "h.N.ln_2.bias", "blk.N.ffn_norm.bias", kHidden),
    Gpt2Matrix("layers.N.up.weight", "h.N.mlp.c_fc.weight", "blk.N.ffn_up.weight", kMlp, kHidden),
    Vector("layers.N.up.bias", "h.N.mlp.c_fc.bias", "blk.N.ffn_up.bias", kMlp),
    Gpt2Matrix("layers.N.down.weight", "h.N.mlp.c_proj.weight", "blk.N.ffn_down.weight", kHidden,
               kMlp),
    Vector("layers.N.down.bias", "h.N.mlp.c_proj.bias", "blk.N.ffn_down.bias", kHidden),
};

// Of the fused weight, or, with one row, of its bias.
constexpr WeightRule BloomQkv(std::string_view name, Extent rows, Extent cols, RowSlice slice) {
  const bool is_bias = rows == kOne;
  return {.name = name,
          .hf = is_bias ? "h.N.self_attention.query_key_value.bias"
                        : "h.N.self_attention.query_key_value.weight",
          .gguf = is_bias ? "blk.N.attn_qkv.bias" : "blk.N.attn_qkv.weight",
          .rows = rows,
          .cols = cols,
          .slice = slice,
          .hf_fused_by_head = true};
}

inline constexpr auto kBloom = std::array{
    Matrix("token_embedding", "word_embeddings.weight", "token_embd.weight", kVocab, kHidden),
    Vector("embedding_norm.weight", "word_embeddings_layernorm.weight", "token_embd_norm.weight",
           kHidden),
    Vector("embedding_norm.bias", "word_embeddings_layernorm.bias", "token_embd_norm.bias",
           kHidden),
    Vector("final_norm.weight", "ln_f.weight", "output_norm.weight", kHidden),
    Vector("final_norm.bias", "ln_f.bias", "output_norm.bias", kHidden),
    kLmHead,
    Vector("layers.N.attention_norm.weight", "h.N.input_layernorm.weight", "blk.N.attn_norm.weight",
           kHidden),
    Vector("layers.N.attention_norm.bias", "h.N.input_layernorm.bias", "blk.N.attn_norm.bias",
           kHidden),
    BloomQkv("layers.N.q.weight", kQuery, kHidden, RowSlice::kQuery),
    BloomQkv("layers.N.k.weight", kKeyValue, kHidden, RowSlice::kKey),
    BloomQkv("layers.N.v.weight", kKeyValue, kHidden, RowSlice::kValue),
    BloomQkv("layers.N.q.bias", kOne, kQuery, RowSlice::kQuery),
    BloomQkv("layers.N.k.bias", kOne, kKeyValue, RowSlice::kKey),
    BloomQkv("layers.N.v.bias", kOne, kKeyValue, RowSlice::kValue),
    Matrix("layers.N.o.weight", "h.N.self_attention.dense.weight", "blk.N.attn_output.weight",
           kHidden, kQuery),
    Vector("layers.N.o.bias", "h.N.self_attention.dense.bias", "blk.N.attn_output.bias", kHidden),
    Vector("layers.N.mlp_norm.weight", "h.N.post_attention_layernorm.weight",
           "blk.N.ffn_norm.weight", kHidden),
    Vector("layers.N.mlp_norm.bias", "h.N.post_attention_layernorm.bias", "blk.N.ffn_norm.bias",
           kHidden),
    Matrix("layers.N.up.weight", "h.N.mlp.dense_h_to_4h.weight", "blk.N.ffn_up.weight", kMlp,
           kHidden),
    Vector("layers.N.up.bias", "h.N.mlp.dense_h_to_4h.bias", "blk.N.ffn_up.bias", kMlp),
    Matrix("layers.N.down.weight", "h.N.mlp.dense_4h_to_h.weight", "blk.N.ffn_down.weight", kHidden,
           kMlp),
    Vector("layers.N.down.bias", "h.N.mlp.dense_4h_to_h.bias", "blk.N.ffn_down.bias", kHidden),
};

}  // namespace latentd::family_weights
