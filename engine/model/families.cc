#include "engine/model/families.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <string>

#include "base/check.h"
#include "base/message.h"

namespace latentd {
namespace {

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

// The Llama shape: RMS norms before each half, RoPE, a gated MLP.
constexpr auto LlamaWeights(Presence qkv_bias) {
  return std::array{
      Matrix("token_embedding", "embed_tokens.weight", "token_embd.weight", kVocab, kHidden),
      Vector("final_norm.weight", "norm.weight", "output_norm.weight", kHidden),
      WeightRule{.name = "lm_head",
                 .hf = "lm_head.weight",
                 .gguf = "output.weight",
                 .rows = kVocab,
                 .cols = kHidden,
                 .presence = kUntied},
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
constexpr auto kLlamaWeights = LlamaWeights(kOptional);
constexpr auto kQwen2Weights = LlamaWeights(kAlways);

// Llama's weights and norms of each head of q and k.
constexpr auto Qwen3Weights() {
  std::array<WeightRule, kLlamaWeights.size() + 2> weights;
  std::copy(kLlamaWeights.begin(), kLlamaWeights.end(), weights.begin());
  weights[kLlamaWeights.size()] =
      Vector("layers.N.q_norm.weight", "layers.N.self_attn.q_norm.weight",
             "blk.N.attn_q_norm.weight", kHead);
  weights[kLlamaWeights.size() + 1] =
      Vector("layers.N.k_norm.weight", "layers.N.self_attn.k_norm.weight",
             "blk.N.attn_k_norm.weight", kHead);
  return weights;
}
constexpr auto kQwen3Weights = Qwen3Weights();

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

constexpr auto kGpt2Weights = std::array{
    Matrix("token_embedding", "wte.weight", "token_embd.weight", kVocab, kHidden),
    Matrix("position_embedding", "wpe.weight", "position_embd.weight", kContext, kHidden),
    Vector("final_norm.weight", "ln_f.weight", "output_norm.weight", kHidden),
    Vector("final_norm.bias", "ln_f.bias", "output_norm.bias", kHidden),
    WeightRule{.name = "lm_head",
               .hf = "lm_head.weight",
               .gguf = "output.weight",
               .rows = kVocab,
               .cols = kHidden,
               .presence = kUntied},
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

constexpr auto kBloomWeights = std::array{
    Matrix("token_embedding", "word_embeddings.weight", "token_embd.weight", kVocab, kHidden),
    Vector("embedding_norm.weight", "word_embeddings_layernorm.weight", "token_embd_norm.weight",
           kHidden),
    Vector("embedding_norm.bias", "word_embeddings_layernorm.bias", "token_embd_norm.bias",
           kHidden),
    Vector("final_norm.weight", "ln_f.weight", "output_norm.weight", kHidden),
    Vector("final_norm.bias", "ln_f.bias", "output_norm.bias", kHidden),
    WeightRule{.name = "lm_head",
               .hf = "lm_head.weight",
               .gguf = "output.weight",
               .rows = kVocab,
               .cols = kHidden,
               .presence = kUntied},
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

constexpr HfConfigKeys kLlamaKeys = {
    .num_layers = "num_hidden_layers",
    .hidden_dim = "hidden_size",
    .num_heads = "num_attention_heads",
    .num_kv_heads = "num_key_value_heads",
    .mlp_dim = "intermediate_size",
    .max_context = "max_position_embeddings",
    .norm_epsilon = "rms_norm_eps",
    .activation = "hidden_act",
    .mlp_optional = false,
};
constexpr HfConfigKeys kGpt2Keys = {
    .num_layers = "n_layer",
    .hidden_dim = "n_embd",
    .num_heads = "n_head",
    .num_kv_heads = nullptr,
    .mlp_dim = "n_inner",
    .max_context = "n_positions",
    .norm_epsilon = "layer_norm_epsilon",
    .activation = "activation_function",
    .mlp_optional = true,
};

// What transformers takes for an absent key.
constexpr HfConfigKeys MistralKeys() {
  HfConfigKeys keys = kLlamaKeys;
  keys.sliding_window = "sliding_window";
  keys.default_sliding_window = 4096;
  return keys;
}
constexpr HfConfigKeys Qwen3Keys() {
  HfConfigKeys keys = kLlamaKeys;
  keys.default_head_dim = 128;
  return keys;
}
// ALiBi has no longest context. Some files state the one of training, 2048 for all published
// models.
constexpr HfConfigKeys kBloomKeys = {
    .num_layers = "n_layer",
    .hidden_dim = "hidden_size",
    .num_heads = "n_head",
    .num_kv_heads = nullptr,
    .mlp_dim = "n_inner",
    .max_context = "seq_length",
    .norm_epsilon = "layer_norm_epsilon",
    .activation = nullptr,
    .mlp_optional = true,
    .old_hidden_dim = "n_embed",
    .old_num_heads = "num_attention_heads",
    .default_max_context = 2048,
};

constexpr std::array<std::string_view, 2> kSilu = {"silu", "swish"};
constexpr std::array<std::string_view, 2> kGeluTanh = {"gelu_new", "gelu_pytorch_tanh"};

constexpr std::array<RefusedSetting, 1> kQwenRefused = {{{"use_sliding_window", true}}};
constexpr std::array<RefusedSetting, 1> kBloomRefused = {
    {{"apply_residual_connection_post_layernorm", true}}};
constexpr std::array<RefusedSetting, 3> kGpt2Refused = {{
    {"scale_attn_weights", false},
    {"scale_attn_by_inverse_layer_idx", true},
    {"add_cross_attention", true},
}};

constexpr Family kFamilies[] = {
    {
        .name = "llama",
        .hf_architecture = "LlamaForCausalLM",
        .gguf_architecture = "llama",
        .hf_prefix = "model.",
        .hf_keys = kLlamaKeys,
        .activations = kSilu,
        .position = PositionKind::kRope,
        .norm = NormKind::kRms,
        .activation = ActivationKind::kSiluGated,
        .gguf_interleaved_rope = true,
        .gguf_sliding_window = true,
        .weights = kLlamaWeights,
    },
    {
        .name = "mistral",
        .hf_architecture = "MistralForCausalLM",
        .gguf_architecture = "llama",
        .hf_prefix = "model.",
        .hf_keys = MistralKeys(),
        .activations = kSilu,
        .position = PositionKind::kRope,
        .norm = NormKind::kRms,
        .activation = ActivationKind::kSiluGated,
        .gguf_interleaved_rope = true,
        .gguf_sliding_window = true,
        .weights = kLlamaWeights,
    },
    {
        .name = "qwen2",
        .hf_architecture = "Qwen2ForCausalLM",
        .gguf_architecture = "qwen2",
        .hf_prefix = "model.",
        .hf_keys = kLlamaKeys,
        .activations = kSilu,
        .refused = kQwenRefused,
        .position = PositionKind::kRope,
        .norm = NormKind::kRms,
        .activation = ActivationKind::kSiluGated,
        .weights = kQwen2Weights,
    },
    {
        .name = "qwen3",
        .hf_architecture = "Qwen3ForCausalLM",
        .gguf_architecture = "qwen3",
        .hf_prefix = "model.",
        .hf_keys = Qwen3Keys(),
        .activations = kSilu,
        .refused = kQwenRefused,
        .position = PositionKind::kRope,
        .norm = NormKind::kRms,
        .activation = ActivationKind::kSiluGated,
        .qk_norm = true,
        .weights = kQwen3Weights,
    },
    {
        .name = "gpt2",
        .hf_architecture = "GPT2LMHeadModel",
        .gguf_architecture = "gpt2",
        .hf_prefix = "transformer.",
        .hf_keys = kGpt2Keys,
        .activations = kGeluTanh,
        .refused = kGpt2Refused,
        .position = PositionKind::kLearned,
        .norm = NormKind::kLayer,
        .activation = ActivationKind::kGeluTanh,
        .tied_by_default = true,
        .weights = kGpt2Weights,
    },
    {
        .name = "bloom",
        .hf_architecture = "BloomForCausalLM",
        .gguf_architecture = "bloom",
        .hf_prefix = "transformer.",
        .hf_keys = kBloomKeys,
        .refused = kBloomRefused,
        .position = PositionKind::kAlibi,
        .norm = NormKind::kLayer,
        .activation = ActivationKind::kGeluTanh,
        .tied_by_default = true,
        .embedding_norm = true,
        .weights = kBloomWeights,
    },
};

absl::StatusOr<const Family*> FindArchitecture(std::string_view architecture,
                                               std::string_view Family::*field) {
  std::set<std::string_view> named;
  std::string supported;
  for (const Family& family : kFamilies) {
    if (family.*field == architecture) return &family;
    if (!named.insert(family.*field).second) continue;
    supported += Message(supported.empty() ? "" : ", ", family.*field);
  }
  return absl::UnimplementedError(Message("the architecture \"", architecture,
                                          "\" is not supported; supported are ", supported));
}

}  // namespace

absl::Span<const Family> Families() { return kFamilies; }

const Family* FindFamily(std::string_view name) {
  const auto* found = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                   [&](const Family& family) { return family.name == name; });
  return found == std::end(kFamilies) ? nullptr : found;
}

absl::StatusOr<const Family*> FindHfFamily(std::string_view architecture) {
  return FindArchitecture(architecture, &Family::hf_architecture);
}

absl::StatusOr<const Family*> FindGgufFamily(std::string_view architecture) {
  return FindArchitecture(architecture, &Family::gguf_architecture);
}

int64_t ExtentOf(Extent extent, const ModelConfig& config) {
  switch (extent) {
    case kOne:
      return 1;
    case kVocab:
      return config.vocab_size;
    case kHidden:
      return config.hidden_dim;
    case kMlp:
      return config.mlp_dim;
    case kQuery:
      return config.q_dim();
    case kKeyValue:
      return config.kv_dim();
    case kHead:
      return config.head_dim;
    case kContext:
      return config.max_context;
  }
  LATENTD_CHECK(false);
}

}  // namespace latentd
