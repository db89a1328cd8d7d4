#include "engine/model/families.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <string>

#include "base/check.h"
#include "base/message.h"
#include "engine/model/family_weights.h"

namespace latentd {
namespace {

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
        .weights = family_weights::kLlama,
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
        .weights = family_weights::kLlama,
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
        .weights = family_weights::kQwen2,
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
        .weights = family_weights::kQwen3,
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
        .weights = family_weights::kGpt2,
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
        .weights = family_weights::kBloom,
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

std::string WithLayer(std::string_view name, int layer) {
  const size_t at = name.find(".N.");
  if (at == std::string_view::npos) return std::string(name);
  return Message(name.substr(0, at + 1), layer, name.substr(at + 2));
}

int64_t ExtentOf(Extent extent, const ModelConfig& config) {
  using enum Extent;
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
