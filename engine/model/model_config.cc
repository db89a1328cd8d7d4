#include "engine/model/model_config.h"

#include <cmath>
#include <limits>

#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace latentd {
namespace {

absl::Status IntInRange(const char* field, int64_t value, int64_t low, int64_t high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", it must be between ", low, " and ", high));
}

// NaN is never in range.
absl::Status InRange(const char* field, double value, double low, double high) {
  if (value >= low && value <= high) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(field, " is ", value, ", it must be between ", low, " and ", high));
}

absl::Status ValidateFactors(const char* field, const std::vector<float>& factors, int dims) {
  if (static_cast<int64_t>(factors.size()) != dims / 2) {
    return absl::InvalidArgumentError(
        absl::StrCat(field, " has ", factors.size(), " factors, the rotated dims need ", dims / 2));
  }
  for (const float factor : factors) RETURN_IF_ERROR(InRange(field, factor, 1e-6, 1e6));
  return absl::OkStatus();
}

absl::Status ValidateRope(const RopeConfig& rope, int head_dim) {
  using Scaling = RopeConfig::Scaling;
  RETURN_IF_ERROR(InRange("rope theta", rope.theta, 1.001, 1e12));
  RETURN_IF_ERROR(IntInRange("the number of rotated dims", rope.dims, 2, head_dim));
  if (rope.dims % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the number of rotated dims is ", rope.dims, ", it must be even"));
  }
  if (rope.scaling == Scaling::kNone) return absl::OkStatus();
  RETURN_IF_ERROR(InRange("rope factor", rope.factor, 1.0, 1e6));
  if (rope.scaling != Scaling::kLinear) {
    RETURN_IF_ERROR(IntInRange("rope original_max_position_embeddings", rope.original_max_positions,
                               2, 1 << 27));
  }
  if (rope.scaling == Scaling::kDynamicNtk && rope.dims < 4) {
    return absl::InvalidArgumentError(absl::StrCat(
        "dynamic rope scaling needs at least 4 rotated dims, the config has ", rope.dims));
  }
  if (rope.scaling == Scaling::kYarn) {
    RETURN_IF_ERROR(InRange("rope beta_fast", rope.beta_fast, 1e-3, 1e6));
    RETURN_IF_ERROR(InRange("rope beta_slow", rope.beta_slow, 1e-3, 1e6));
    RETURN_IF_ERROR(InRange("rope mscale", rope.mscale, 0.0, 1e3));
    RETURN_IF_ERROR(InRange("rope mscale_all_dim", rope.mscale_all_dim, 0.0, 1e3));
  }
  if (rope.scaling == Scaling::kLlama3) {
    RETURN_IF_ERROR(InRange("rope low_freq_factor", rope.low_freq_factor, 1e-3, 1e6));
    RETURN_IF_ERROR(InRange("rope high_freq_factor", rope.high_freq_factor, 1e-3, 1e6));
    if (rope.low_freq_factor >= rope.high_freq_factor) {
      return absl::InvalidArgumentError(absl::StrCat("rope low_freq_factor ", rope.low_freq_factor,
                                                     " must be below high_freq_factor ",
                                                     rope.high_freq_factor));
    }
  }
  if (rope.scaling == Scaling::kLongRope) {
    RETURN_IF_ERROR(ValidateFactors("rope short_factor", rope.short_factors, rope.dims));
    RETURN_IF_ERROR(ValidateFactors("rope long_factor", rope.long_factors, rope.dims));
  }
  RETURN_IF_ERROR(InRange("rope attention_factor", rope.attention_factor, 0.0, 1e3));
  const float score_factor = ComputeRopeFrequencies(rope, rope.original_max_positions).score_factor;
  if (score_factor != 1.0f && rope.dims != head_dim) {
    return absl::UnimplementedError(
        absl::StrCat("a rope attention factor with ", rope.dims, " rotated dims of ", head_dim,
                     " is not supported: it would have to scale the rotated dims alone"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const ModelConfig& config) {
  RETURN_IF_ERROR(IntInRange("vocab_size", config.vocab_size, 1, 1 << 20));
  RETURN_IF_ERROR(IntInRange("num_layers", config.num_layers, 1, 4096));
  RETURN_IF_ERROR(IntInRange("hidden_dim", config.hidden_dim, 1, 1 << 20));
  RETURN_IF_ERROR(IntInRange("mlp_dim", config.mlp_dim, 1, 1 << 22));
  RETURN_IF_ERROR(IntInRange("num_heads", config.num_heads, 1, 1 << 12));
  RETURN_IF_ERROR(IntInRange("num_kv_heads", config.num_kv_heads, 1, config.num_heads));
  RETURN_IF_ERROR(IntInRange("head_dim", config.head_dim, 1, 1 << 12));
  RETURN_IF_ERROR(IntInRange("max_context", config.max_context, 1, 1 << 24));
  if (config.num_heads % config.num_kv_heads != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "num_kv_heads ", config.num_kv_heads, " does not divide num_heads ", config.num_heads));
  }
  if (config.position == PositionKind::kRope) {
    RETURN_IF_ERROR(ValidateRope(config.rope, config.head_dim));
  }
  RETURN_IF_ERROR(InRange("alibi_bias_max", config.alibi_bias_max, 1e-3, 64.0));
  RETURN_IF_ERROR(IntInRange("sliding_window", config.sliding_window, 0, 1 << 24));
  if (config.qk_norm && config.position != PositionKind::kRope) {
    return absl::UnimplementedError("norms of q and k are supported with RoPE alone");
  }
  RETURN_IF_ERROR(InRange("norm_epsilon", config.norm_epsilon, 0.0, 1.0));
  RETURN_IF_ERROR(IntInRange("bos_token_id", config.bos_token_id, -1, config.vocab_size - 1));
  for (const int32_t id : config.eos_token_ids) {
    RETURN_IF_ERROR(IntInRange("eos_token_id", id, 0, config.vocab_size - 1));
  }
  RETURN_IF_ERROR(InRange("temperature", config.default_temperature, 0.0, 100.0));
  RETURN_IF_ERROR(InRange("top_p", config.default_top_p, 1e-6, 1.0));
  RETURN_IF_ERROR(
      IntInRange("top_k", config.default_top_k, 0, std::numeric_limits<int32_t>::max()));
  return absl::OkStatus();
}

}  // namespace latentd
