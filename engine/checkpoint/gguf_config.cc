#include "engine/checkpoint/gguf_config.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "base/message.h"
#include "base/status_macros.h"

namespace latentd {
namespace {

// "<architecture>.<key>" values, as the narrow types of a config.
class ArchitectureKeys {
 public:
  ArchitectureKeys(const GgufFile& file, const Family& family) : file_(file), family_(family) {}

  std::string Key(std::string_view key) const {
    return Message(family_.gguf_architecture, ".", key);
  }

  // Leaves `out` alone when the key is absent.
  absl::Status Read(std::string_view key, int& out) const {
    ASSIGN_OR_RETURN(const std::optional<int64_t> value, file_.Int(Key(key)));
    if (!value.has_value()) return absl::OkStatus();
    if (*value < 0 || *value > std::numeric_limits<int>::max()) {
      return absl::InvalidArgumentError(Message(file_.name(), ": ", Key(key), " is ", *value,
                                                ", it must be between 0 and ",
                                                std::numeric_limits<int>::max()));
    }
    out = static_cast<int>(*value);
    return absl::OkStatus();
  }
  absl::Status Require(std::string_view key, int& out) const {
    ASSIGN_OR_RETURN(const std::optional<int64_t> value, file_.Int(Key(key)));
    if (!value.has_value()) {
      return absl::InvalidArgumentError(Message(file_.name(), ": ", Key(key), " is missing"));
    }
    return Read(key, out);
  }
  absl::Status Read(std::string_view key, float& out) const {
    ASSIGN_OR_RETURN(const std::optional<double> value, file_.Float(Key(key)));
    if (value.has_value()) out = static_cast<float>(*value);
    return absl::OkStatus();
  }

 private:
  const GgufFile& file_;
  const Family& family_;
};

// A tensor of F32 factors, one for each rotated pair; empty when the file has none of that name.
absl::StatusOr<std::vector<float>> ReadFactors(const GgufFile& file, std::string_view name) {
  const auto it = file.tensors().find(name);
  if (it == file.tensors().end()) return std::vector<float>();
  const StoredTensor& tensor = it->second;
  if (tensor.dtype != DType::kF32 || tensor.shape.size() != 1 || tensor.shape[0] > 1 << 16) {
    return absl::InvalidArgumentError(Message(file.name(), ": tensor ", name, " has type ",
                                              tensor.type, " and shape ", ShapeText(tensor.shape),
                                              ", it must be a short vector of F32"));
  }
  std::vector<float> factors(tensor.shape[0]);
  std::copy_n(tensor.data.data(), tensor.data.size(), reinterpret_cast<std::byte*>(factors.data()));
  return factors;
}

absl::Status ReadRope(const GgufFile& file, const ArchitectureKeys& keys, const ModelConfig& config,
                      RopeConfig& rope) {
  using Scaling = RopeConfig::Scaling;
  rope.dims = config.head_dim;
  RETURN_IF_ERROR(keys.Read("rope.freq_base", rope.theta));
  RETURN_IF_ERROR(keys.Read("rope.dimension_count", rope.dims));
  ASSIGN_OR_RETURN(const std::optional<std::string_view> type_value,
                   file.String(keys.Key("rope.scaling.type")));
  std::string_view type = type_value.value_or("none");
  rope.original_max_positions = config.max_context;
  RETURN_IF_ERROR(keys.Read("rope.scaling.original_context_length", rope.original_max_positions));
  RETURN_IF_ERROR(keys.Read("rope.scaling.factor", rope.factor));
  if (!type_value.has_value()) {
    // Files from before rope.scaling.type say linear scaling by this key alone.
    float linear = 0.0f;
    RETURN_IF_ERROR(keys.Read("rope.scale_linear", linear));
    if (linear != 0.0f && linear != 1.0f) {
      rope.factor = linear;
      type = "linear";
    }
  }

  ASSIGN_OR_RETURN(rope.short_factors, ReadFactors(file, "rope_freqs.weight"));
  if (!rope.short_factors.empty()) {
    if (type != "none") {
      return absl::UnimplementedError(Message(file.name(), ": rope_freqs.weight together with ",
                                              keys.Key("rope.scaling.type"), " \"", type,
                                              "\" is not supported"));
    }
    rope.scaling = Scaling::kLongRope;
    rope.long_factors = rope.short_factors;
    rope.factor = 1.0f;
    return absl::OkStatus();
  }
  if (type == "none") {
    rope.factor = 1.0f;
    return absl::OkStatus();
  }
  if (type == "linear") {
    rope.scaling = Scaling::kLinear;
    return absl::OkStatus();
  }
  if (type == "yarn") {
    rope.scaling = Scaling::kYarn;
    RETURN_IF_ERROR(keys.Read("rope.scaling.yarn_beta_fast", rope.beta_fast));
    RETURN_IF_ERROR(keys.Read("rope.scaling.yarn_beta_slow", rope.beta_slow));
    float attention = 1.0f;  // on top of what YaRN itself wants
    RETURN_IF_ERROR(keys.Read("rope.scaling.attn_factor", attention));
    RETURN_IF_ERROR(keys.Read("rope.scaling.yarn_log_multiplier", rope.mscale_all_dim));
    if (rope.mscale_all_dim != 0.0f) rope.mscale = 1.0f;
    if (attention != 1.0f) {
      rope.attention_factor = attention * (0.1f * std::log(std::max(rope.factor, 1.0f)) + 1.0f);
    }
    return absl::OkStatus();
  }
  if (type == "longrope") {
    rope.scaling = Scaling::kLongRope;
    ASSIGN_OR_RETURN(rope.short_factors, ReadFactors(file, "rope_factors_short.weight"));
    ASSIGN_OR_RETURN(rope.long_factors, ReadFactors(file, "rope_factors_long.weight"));
    rope.factor = static_cast<float>(config.max_context) / std::max(rope.original_max_positions, 1);
    return keys.Read("rope.scaling.attn_factor", rope.attention_factor);
  }
  return absl::UnimplementedError(Message(file.name(), ": ", keys.Key("rope.scaling.type"),
                                          " is \"", type,
                                          "\"; supported are none, linear, yarn and longrope"));
}

// What a file of a supported architecture may still be.
absl::Status CheckSupported(const GgufFile& file, const ArchitectureKeys& keys) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> parts, file.Int("split.count"));
  if (parts.has_value() && *parts > 1) {
    return absl::UnimplementedError(
        Message(file.name(), ": the file is one of ", *parts,
                " parts of a model; only models in one GGUF file are supported"));
  }
  int experts = 0;
  RETURN_IF_ERROR(keys.Read("expert_count", experts));
  if (experts > 0) {
    return absl::UnimplementedError(Message(file.name(), ": a mixture of ", experts, " experts (",
                                            keys.Key("expert_count"), ") is not supported"));
  }
  return absl::OkStatus();
}

// The window of all layers. Some of other architectures have it in some layers alone.
absl::Status ReadSlidingWindow(const GgufFile& file, const ArchitectureKeys& keys,
                               ModelConfig& config) {
  if (file.Has(keys.Key("attention.sliding_window_pattern"))) {
    return absl::UnimplementedError(Message(file.name(), ": ",
                                            keys.Key("attention.sliding_window_pattern"),
                                            ", a window in some layers alone, is not supported"));
  }
  return keys.Read("attention.sliding_window", config.sliding_window);
}

absl::Status ReadTokenId(const GgufFile& file, std::string_view key, int32_t& out) {
  ASSIGN_OR_RETURN(const std::optional<int64_t> value, file.Int(key));
  if (!value.has_value()) return absl::OkStatus();
  // Some writers store "none" as -1, also in unsigned fields.
  if (*value == -1 || *value == 0xffffffffll) return absl::OkStatus();
  if (*value < 0 || *value > std::numeric_limits<int32_t>::max()) {
    return absl::InvalidArgumentError(Message(file.name(), ": ", key, " is ", *value,
                                              ", it must be between 0 and ",
                                              std::numeric_limits<int32_t>::max()));
  }
  out = static_cast<int32_t>(*value);
  return absl::OkStatus();
}

// The eos token, and the control tokens by which published chat models end a turn.
absl::Status ReadEndTokens(const GgufFile& file, ModelConfig& config) {
  constexpr std::string_view kEndTokens[] = {"<|im_end|>",     "<|eot_id|>",    "<|eom_id|>",
                                             "<|end|>",        "<|endoftext|>", "<end_of_turn>",
                                             "<|end_of_text|>"};
  constexpr int32_t kControl = 3;
  auto add = [&config](int32_t id) {
    auto& ids = config.eos_token_ids;
    if (id >= 0 && std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  };
  for (const char* key : {"tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id",
                          "tokenizer.ggml.eom_token_id"}) {
    int32_t id = -1;
    RETURN_IF_ERROR(ReadTokenId(file, key, id));
    add(id);
  }
  ASSIGN_OR_RETURN(const auto tokens, file.Strings("tokenizer.ggml.tokens"));
  ASSIGN_OR_RETURN(const auto types, file.Ints("tokenizer.ggml.token_type"));
  for (size_t i = 0; i < std::min(tokens.size(), types.size()); ++i) {
    if (types[i] != kControl) continue;
    const bool ends =
        std::find(std::begin(kEndTokens), std::end(kEndTokens), tokens[i]) != std::end(kEndTokens);
    if (ends) add(static_cast<int32_t>(i));
  }
  return absl::OkStatus();
}

// An array that goes with the tokens is absent or has an entry for each.
absl::Status CheckTokenCount(const GgufFile& file, std::string_view key, size_t count,
                             const GgufVocabulary& vocabulary) {
  if (count == 0 || count == vocabulary.tokens.size()) return absl::OkStatus();
  return absl::InvalidArgumentError(Message(file.name(), ": ", key, " has ", count, " entries for ",
                                            vocabulary.tokens.size(), " tokens"));
}

}  // namespace

absl::StatusOr<ModelConfig> ReadGgufConfig(const GgufFile& file, const Family& family) {
  const ArchitectureKeys keys(file, family);
  RETURN_IF_ERROR(CheckSupported(file, keys));
  ModelConfig config{.family = std::string(family.name)};
  ASSIGN_OR_RETURN(const auto name, file.String("general.name"));
  config.name = std::string(name.value_or(""));
  RETURN_IF_ERROR(keys.Require("block_count", config.num_layers));
  RETURN_IF_ERROR(keys.Require("embedding_length", config.hidden_dim));
  RETURN_IF_ERROR(keys.Require("feed_forward_length", config.mlp_dim));
  RETURN_IF_ERROR(keys.Require("context_length", config.max_context));
  RETURN_IF_ERROR(keys.Require("attention.head_count", config.num_heads));
  config.num_kv_heads = config.num_heads;
  RETURN_IF_ERROR(keys.Read("attention.head_count_kv", config.num_kv_heads));
  if (config.num_heads < 1) {
    return absl::InvalidArgumentError(Message(file.name(), ": ", keys.Key("attention.head_count"),
                                              " is ", config.num_heads, ", it must be at least 1"));
  }
  RETURN_IF_ERROR(keys.Read("attention.key_length", config.head_dim));
  int value_length = config.head_dim;
  RETURN_IF_ERROR(keys.Read("attention.value_length", value_length));
  if (value_length != config.head_dim) {
    return absl::UnimplementedError(Message(file.name(), ": keys of ", config.head_dim,
                                            " dims and values of ", value_length,
                                            " are not supported, they must be equal"));
  }
  if (config.head_dim == 0) {
    if (config.hidden_dim % config.num_heads != 0) {
      return absl::InvalidArgumentError(
          Message(file.name(), ": ", keys.Key("attention.head_count"), " ", config.num_heads,
                  " does not divide ", keys.Key("embedding_length"), " ", config.hidden_dim));
    }
    config.head_dim = config.hidden_dim / config.num_heads;
  }

  const auto embedding = file.tensors().find("token_embd.weight");
  if (embedding == file.tensors().end() || embedding->second.shape.size() != 2) {
    return absl::InvalidArgumentError(
        Message(file.name(), ": the matrix token_embd.weight is missing"));
  }
  const int64_t vocab_size = embedding->second.shape[0];
  if (vocab_size > 1 << 24) {
    return absl::InvalidArgumentError(Message(file.name(), ": token_embd.weight has ", vocab_size,
                                              " rows, at most ", 1 << 24, " are allowed"));
  }
  config.vocab_size = static_cast<int>(vocab_size);
  int stated_vocab_size = config.vocab_size;
  RETURN_IF_ERROR(keys.Read("vocab_size", stated_vocab_size));
  if (stated_vocab_size != config.vocab_size) {
    return absl::InvalidArgumentError(Message(file.name(), ": ", keys.Key("vocab_size"), " is ",
                                              stated_vocab_size, ", but token_embd.weight has ",
                                              vocab_size, " rows"));
  }

  config.position = family.position;
  config.norm = family.norm;
  config.activation = family.activation;
  config.qk_norm = family.qk_norm;
  config.embedding_norm = family.embedding_norm;
  if (family.gguf_sliding_window) RETURN_IF_ERROR(ReadSlidingWindow(file, keys, config));
  config.tied_embeddings = !file.tensors().contains("output.weight");
  RETURN_IF_ERROR(keys.Read(family.norm == NormKind::kRms ? "attention.layer_norm_rms_epsilon"
                                                          : "attention.layer_norm_epsilon",
                            config.norm_epsilon));
  if (family.position == PositionKind::kRope) {
    RETURN_IF_ERROR(ReadRope(file, keys, config, config.rope));
  }
  RETURN_IF_ERROR(ReadTokenId(file, "tokenizer.ggml.bos_token_id", config.bos_token_id));
  RETURN_IF_ERROR(ReadEndTokens(file, config));
  const absl::Status valid = Validate(config);
  if (!valid.ok()) return absl::Status(valid.code(), Message(file.name(), ": ", valid.message()));
  return config;
}

absl::StatusOr<TokenizerSource> ReadGgufTokenizer(const GgufFile& file) {
  TokenizerSource source;
  ASSIGN_OR_RETURN(const auto chat_template, file.String("tokenizer.chat_template"));
  source.chat_template = std::string(chat_template.value_or(""));
  ASSIGN_OR_RETURN(const auto model, file.String("tokenizer.ggml.model"));
  if (!model.has_value()) return source;

  GgufVocabulary& vocabulary = source.gguf.emplace();
  vocabulary.model = std::string(*model);
  ASSIGN_OR_RETURN(const auto pre_tokenizer, file.String("tokenizer.ggml.pre"));
  vocabulary.pre_tokenizer = std::string(pre_tokenizer.value_or(""));
  ASSIGN_OR_RETURN(vocabulary.tokens, file.Strings("tokenizer.ggml.tokens"));
  ASSIGN_OR_RETURN(vocabulary.scores, file.Floats("tokenizer.ggml.scores"));
  ASSIGN_OR_RETURN(vocabulary.token_types, file.Ints("tokenizer.ggml.token_type"));
  ASSIGN_OR_RETURN(vocabulary.merges, file.Strings("tokenizer.ggml.merges"));
  RETURN_IF_ERROR(
      CheckTokenCount(file, "tokenizer.ggml.scores", vocabulary.scores.size(), vocabulary));
  RETURN_IF_ERROR(CheckTokenCount(file, "tokenizer.ggml.token_type", vocabulary.token_types.size(),
                                  vocabulary));
  RETURN_IF_ERROR(ReadTokenId(file, "tokenizer.ggml.bos_token_id", vocabulary.bos_token_id));
  RETURN_IF_ERROR(ReadTokenId(file, "tokenizer.ggml.eos_token_id", vocabulary.eos_token_id));
  RETURN_IF_ERROR(
      ReadTokenId(file, "tokenizer.ggml.unknown_token_id", vocabulary.unknown_token_id));
  ASSIGN_OR_RETURN(vocabulary.add_bos, file.Bool("tokenizer.ggml.add_bos_token"));
  ASSIGN_OR_RETURN(vocabulary.add_eos, file.Bool("tokenizer.ggml.add_eos_token"));
  ASSIGN_OR_RETURN(vocabulary.add_space_prefix, file.Bool("tokenizer.ggml.add_space_prefix"));
  return source;
}

}  // namespace latentd
