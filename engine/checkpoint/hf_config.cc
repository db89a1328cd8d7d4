#include "engine/checkpoint/hf_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/message.h"
#include "base/status_macros.h"
#include "engine/checkpoint/json.h"

namespace latentd {
namespace {

using Json = nlohmann::json;
using Scaling = RopeConfig::Scaling;

constexpr const char* kConfig = "config.json";
constexpr const char* kGeneration = "generation_config.json";
constexpr double kMaxContext = 1 << 24;

struct ScalingName {
  std::string_view name;
  Scaling scaling;
};
constexpr ScalingName kScalings[] = {
    {"default", Scaling::kNone}, {"linear", Scaling::kLinear}, {"dynamic", Scaling::kDynamicNtk},
    {"yarn", Scaling::kYarn},    {"llama3", Scaling::kLlama3}, {"longrope", Scaling::kLongRope},
    {"su", Scaling::kLongRope},  // longrope's first name
};

template <typename T>
absl::Status Require(const Json& json, const char* key, T& out) {
  if (!HasField(json, key)) {
    return absl::InvalidArgumentError(Message(kConfig, ": \"", key, "\" is missing"));
  }
  return ReadField(json, key, kConfig, out);
}

// The same, of a key that older files call `old_key`, if that is not null.
absl::Status Require(const Json& json, const char* key, const char* old_key, int& out) {
  const bool is_old = !HasField(json, key) && old_key != nullptr && HasField(json, old_key);
  return Require(json, is_old ? old_key : key, out);
}

absl::StatusOr<Scaling> ScalingOf(const Json& parameters, bool is_new_style) {
  std::string type = is_new_style ? "default" : "";
  RETURN_IF_ERROR(ReadField(parameters, "type", kConfig, type));
  RETURN_IF_ERROR(ReadField(parameters, "rope_type", kConfig, type));
  std::string supported;
  for (const ScalingName& entry : kScalings) {
    if (entry.name == type) return entry.scaling;
    supported += Message(supported.empty() ? "" : ", ", entry.name);
  }
  return absl::UnimplementedError(Message(kConfig, ": the rope scaling \"", type,
                                          "\" is not supported; supported are ", supported));
}

// Two generations of keys: rope_theta and rope_scaling beside each other, or both inside
// rope_parameters.
absl::Status ReadRope(const Json& json, ModelConfig& config) {
  RopeConfig& rope = config.rope;
  const bool is_new_style = HasField(json, "rope_parameters");
  const char* key = is_new_style ? "rope_parameters" : "rope_scaling";
  const Json empty = Json::object();
  const Json& parameters = HasField(json, key) ? json[key] : empty;
  if (!parameters.is_object()) {
    return absl::InvalidArgumentError(Message(kConfig, ": \"", key, "\" is no JSON object"));
  }
  float rotary_factor = 1.0f;
  for (const Json* source : {&json, &parameters}) {
    RETURN_IF_ERROR(ReadField(*source, "rope_theta", kConfig, rope.theta));
    RETURN_IF_ERROR(ReadField(*source, "partial_rotary_factor", kConfig, rotary_factor));
  }
  if (!(rotary_factor > 0.0f && rotary_factor <= 1.0f)) {
    return absl::InvalidArgumentError(Message(kConfig, ": \"partial_rotary_factor\" is ",
                                              rotary_factor, ", it must be in (0, 1]"));
  }
  rope.dims = static_cast<int>(static_cast<double>(config.head_dim) * rotary_factor);
  if (parameters.empty()) return absl::OkStatus();

  ASSIGN_OR_RETURN(rope.scaling, ScalingOf(parameters, is_new_style));
  if (rope.scaling == Scaling::kNone) return absl::OkStatus();
  rope.original_max_positions = config.max_context;
  if (rope.scaling != Scaling::kDynamicNtk) {
    for (const Json* source : {&parameters, &json}) {
      RETURN_IF_ERROR(ReadField(*source, "original_max_position_embeddings", kConfig,
                                rope.original_max_positions));
    }
  }
  if (rope.original_max_positions < 1) {
    return absl::InvalidArgumentError(Message(kConfig, ": \"original_max_position_embeddings\" is ",
                                              rope.original_max_positions, ", it must be above 0"));
  }
  rope.factor = static_cast<float>(config.max_context) / rope.original_max_positions;
  const bool has_factor = HasField(parameters, "factor");
  if (!has_factor && rope.scaling != Scaling::kLongRope && rope.scaling != Scaling::kYarn) {
    return absl::InvalidArgumentError(Message(kConfig, ": \"", key, "\" has no \"factor\""));
  }
  struct FloatField {
    const char* key;
    float* value;
  };
  for (const FloatField& field : {
           FloatField{"factor", &rope.factor},
           FloatField{"attention_factor", &rope.attention_factor},
           FloatField{"beta_fast", &rope.beta_fast},
           FloatField{"beta_slow", &rope.beta_slow},
           FloatField{"mscale", &rope.mscale},
           FloatField{"mscale_all_dim", &rope.mscale_all_dim},
           FloatField{"low_freq_factor", &rope.low_freq_factor},
           FloatField{"high_freq_factor", &rope.high_freq_factor},
       }) {
    RETURN_IF_ERROR(ReadField(parameters, field.key, kConfig, *field.value));
  }
  RETURN_IF_ERROR(ReadField(parameters, "truncate", kConfig, rope.truncate));
  RETURN_IF_ERROR(ReadField(parameters, "short_factor", kConfig, rope.short_factors));
  RETURN_IF_ERROR(ReadField(parameters, "long_factor", kConfig, rope.long_factors));

  // For these scalings max_position_embeddings is (linear, dynamic) or may be (yarn) the context
  // before the scaling.
  const bool extends = rope.scaling == Scaling::kLinear || rope.scaling == Scaling::kDynamicNtk ||
                       rope.scaling == Scaling::kYarn;
  if (extends && rope.factor > 1.0f) {
    const double extended = static_cast<double>(rope.original_max_positions) * rope.factor;
    config.max_context =
        std::max(config.max_context, static_cast<int>(std::min(extended, kMaxContext)));
  }
  return absl::OkStatus();
}

// The window of all layers. Configs that list the layers' kinds may mix them, which is refused.
absl::Status ReadSlidingWindow(const Json& json, const HfConfigKeys& keys, ModelConfig& config) {
  if (keys.sliding_window != nullptr) {
    if (!json.contains(keys.sliding_window)) config.sliding_window = keys.default_sliding_window;
    RETURN_IF_ERROR(ReadField(json, keys.sliding_window, kConfig, config.sliding_window));
    if (config.sliding_window < 1 && HasField(json, keys.sliding_window)) {
      return absl::InvalidArgumentError(Message(kConfig, ": \"", keys.sliding_window, "\" is ",
                                                config.sliding_window,
                                                ", it must be above 0, or null for no window"));
    }
  }
  if (!HasField(json, "layer_types")) return absl::OkStatus();
  const Json& types = json["layer_types"];
  const std::string_view wanted =
      config.sliding_window > 0 ? "sliding_attention" : "full_attention";
  for (size_t layer = 0; types.is_array() && layer < types.size(); ++layer) {
    if (types[layer] == wanted) continue;
    return absl::UnimplementedError(
        Message(kConfig, ": \"layer_types\" says ", types[layer].dump(), " for layer ", layer,
                " of a model whose sliding window is ", config.sliding_window, "; supported is \"",
                wanted, "\" for all layers"));
  }
  if (types.is_array()) return absl::OkStatus();
  return absl::InvalidArgumentError(Message(kConfig, ": \"layer_types\" is no list"));
}

absl::Status ReadActivation(const Json& json, const Family& family) {
  if (family.hf_keys.activation == nullptr) return absl::OkStatus();
  std::string activation(family.activations.front());
  RETURN_IF_ERROR(ReadField(json, family.hf_keys.activation, kConfig, activation));
  const auto& names = family.activations;
  if (std::find(names.begin(), names.end(), activation) != names.end()) return absl::OkStatus();
  return absl::UnimplementedError(Message(kConfig, ": \"", family.hf_keys.activation, "\" is \"",
                                          activation, "\"; supported is ", names.front()));
}

absl::Status CheckRefused(const Json& json, const Family& family) {
  for (const RefusedSetting& refused : family.refused) {
    bool value = !refused.value;
    RETURN_IF_ERROR(ReadField(json, refused.key, kConfig, value));
    if (value == refused.value) {
      return absl::UnimplementedError(Message(
          kConfig, ": \"", refused.key, "\": ", value ? "true" : "false", " is not supported"));
    }
  }
  if (HasField(json, "quantization_config")) {
    std::string method = "?";
    RETURN_IF_ERROR(ReadField(json["quantization_config"], "quant_method", kConfig, method));
    return absl::UnimplementedError(Message(kConfig, ": weights quantised by \"", method,
                                            "\" are not supported; use F32, F16 or BF16, or GGUF"));
  }
  return absl::OkStatus();
}

absl::Status ReadGeneration(const Json& generation, ModelConfig& config) {
  if (!generation.is_object()) return absl::OkStatus();
  RETURN_IF_ERROR(ReadField(generation, "eos_token_id", kGeneration, config.eos_token_ids));
  RETURN_IF_ERROR(ReadField(generation, "temperature", kGeneration, config.default_temperature));
  RETURN_IF_ERROR(ReadField(generation, "top_p", kGeneration, config.default_top_p));
  return ReadField(generation, "top_k", kGeneration, config.default_top_k);
}

}  // namespace

absl::StatusOr<const Family*> FamilyOfHfConfig(const Json& config) {
  const bool has = HasField(config, "architectures") && config["architectures"].is_array() &&
                   !config["architectures"].empty() && config["architectures"][0].is_string();
  if (!has) {
    return absl::InvalidArgumentError(Message(kConfig, ": \"architectures\" names none"));
  }
  return FindHfFamily(config["architectures"][0].get_ref<const std::string&>());
}

absl::StatusOr<ModelConfig> ReadHfConfig(const Json& json, const Json& generation,
                                         const Family& family) {
  const HfConfigKeys& keys = family.hf_keys;
  ModelConfig config{.family = std::string(family.name)};
  RETURN_IF_ERROR(CheckRefused(json, family));
  RETURN_IF_ERROR(ReadActivation(json, family));
  RETURN_IF_ERROR(Require(json, "vocab_size", config.vocab_size));
  RETURN_IF_ERROR(Require(json, keys.num_layers, config.num_layers));
  RETURN_IF_ERROR(Require(json, keys.hidden_dim, keys.old_hidden_dim, config.hidden_dim));
  RETURN_IF_ERROR(Require(json, keys.num_heads, keys.old_num_heads, config.num_heads));
  config.max_context = keys.default_max_context;
  if (config.max_context == 0 || HasField(json, keys.max_context)) {
    RETURN_IF_ERROR(Require(json, keys.max_context, config.max_context));
  }
  if (config.num_heads < 1 || config.hidden_dim < 1 || config.hidden_dim > 1 << 20) {
    return absl::InvalidArgumentError(Message(
        kConfig, ": \"", keys.num_heads, "\" is ", config.num_heads, " and \"", keys.hidden_dim,
        "\" is ", config.hidden_dim, ", they must be between 1 and ", 1 << 20));
  }
  if (keys.mlp_optional && !HasField(json, keys.mlp_dim)) {
    config.mlp_dim = 4 * config.hidden_dim;
  } else {
    RETURN_IF_ERROR(Require(json, keys.mlp_dim, config.mlp_dim));
  }
  config.num_kv_heads = config.num_heads;
  if (keys.num_kv_heads != nullptr) {
    RETURN_IF_ERROR(ReadField(json, keys.num_kv_heads, kConfig, config.num_kv_heads));
  }
  config.head_dim = keys.default_head_dim;
  RETURN_IF_ERROR(ReadField(json, "head_dim", kConfig, config.head_dim));
  RETURN_IF_ERROR(ReadSlidingWindow(json, keys, config));
  if (config.head_dim == 0) {
    if (config.hidden_dim % config.num_heads != 0) {
      return absl::InvalidArgumentError(Message(kConfig, ": \"", keys.num_heads, "\" ",
                                                config.num_heads, " does not divide \"",
                                                keys.hidden_dim, "\" ", config.hidden_dim));
    }
    config.head_dim = config.hidden_dim / config.num_heads;
  }
  config.position = family.position;
  config.norm = family.norm;
  config.activation = family.activation;
  config.qk_norm = family.qk_norm;
  config.embedding_norm = family.embedding_norm;
  config.tied_embeddings = family.tied_by_default;
  RETURN_IF_ERROR(ReadField(json, keys.norm_epsilon, kConfig, config.norm_epsilon));
  RETURN_IF_ERROR(ReadField(json, "tie_word_embeddings", kConfig, config.tied_embeddings));
  RETURN_IF_ERROR(ReadField(json, "attention_bias", kConfig, config.qkv_bias));
  if (family.position == PositionKind::kRope) RETURN_IF_ERROR(ReadRope(json, config));

  std::vector<int32_t> bos;
  RETURN_IF_ERROR(ReadField(json, "bos_token_id", kConfig, bos));
  if (!bos.empty()) config.bos_token_id = bos.front();
  RETURN_IF_ERROR(ReadField(json, "eos_token_id", kConfig, config.eos_token_ids));
  RETURN_IF_ERROR(ReadGeneration(generation, config));
  const absl::Status valid = Validate(config);
  if (!valid.ok()) return absl::Status(valid.code(), Message(kConfig, ": ", valid.message()));
  return config;
}

}  // namespace latentd
