#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "kernels/params.h"

namespace latentd {

enum class PositionKind : uint8_t {
  kRope,
  kLearned,
  kAlibi,  // a penalty on scores that grows with the distance (Press et al. 2022)
};

// Rotary embedding of a model, as published configs state it.
struct RopeConfig {
  enum class Scaling : uint8_t { kNone, kLinear, kDynamicNtk, kYarn, kLlama3, kLongRope };
  float theta = 10000.0f;
  int dims = 0;  // rotated dims of a head, even; <= head_dim
  Scaling scaling = Scaling::kNone;
  float factor = 1.0f;
  int original_max_positions =
      0;  // the context that training saw before the scaling; all but kLinear
  // kYarn
  float attention_factor = 0.0f;  // 0: from `factor`; also kLongRope
  float beta_fast = 32.0f, beta_slow = 1.0f;
  float mscale = 0.0f, mscale_all_dim = 0.0f;
  bool truncate = true;  // the ramp's ends to whole pair indices
  // kLlama3
  float low_freq_factor = 1.0f, high_freq_factor = 4.0f;
  // kLongRope; also GGUF's rope_freqs.weight (as short == long factors)
  std::vector<float> short_factors, long_factors;  // [dims / 2]
};

// What tells models apart, as data: everything that the decoder branches on.
struct ModelConfig {
  std::string family;  // row of the families table: "llama", "bloom", ...
  std::string name;    // for people: general.name, or the folder's name
  int vocab_size = 0;
  int num_layers = 0;
  int hidden_dim = 0;
  int mlp_dim = 0;
  int num_heads = 0;
  int num_kv_heads = 0;  // divides num_heads
  int head_dim = 0;
  int max_context = 0;

  PositionKind position = PositionKind::kRope;
  RopeConfig rope;              // kRope
  float alibi_bias_max = 8.0f;  // kAlibi: the steepest slopes reach 2^-alibi_bias_max
  int sliding_window = 0;       // > 0: position n sees only the positions above n - sliding_window
  bool qk_norm = false;         // RMS norms of each query and key head before RoPE
  bool embedding_norm = false;  // a norm between the embedding and the first layer
  NormKind norm = NormKind::kRms;
  float norm_epsilon = 1e-5f;
  ActivationKind activation = ActivationKind::kSiluGated;
  bool tied_embeddings = false;  // lm_head is the token embedding
  bool qkv_bias = false;

  int32_t bos_token_id = -1;           // -1: none
  std::vector<int32_t> eos_token_ids;  // any of them ends a generation
  float default_temperature = 1.0f;    // generation_config.json
  float default_top_p = 1.0f;
  int default_top_k = 0;

  int q_dim() const { return num_heads * head_dim; }
  int kv_dim() const { return num_kv_heads * head_dim; }
  // The uncompressed 16-bit cache: 2 planes x layers x kv_dim x 2 bytes.
  int64_t full_bytes_per_token() const { return int64_t{2} * num_layers * kv_dim() * 2; }
};

// Every number in range and consistent with the others; INVALID_ARGUMENT names the field and both
// numbers.
absl::Status Validate(const ModelConfig& config);

// Inverse frequencies [dims / 2] and the factor that multiplies q . k (attention factor squared)
// after scaling, for sequences up to `max_context`. Formulas as Hugging Face transformers'
// modeling_rope_utils states them; kDynamicNtk and kLongRope, which there depend on the current
// length, are fixed for `max_context` so that cached keys stay valid.
struct RopeFrequencies {
  std::vector<double> inv_freq;
  float score_factor = 1.0f;
};
RopeFrequencies ComputeRopeFrequencies(const RopeConfig& config, int max_context);
RopeTable BuildRopeTable(const RopeFrequencies& frequencies, int max_positions);

}  // namespace latentd
