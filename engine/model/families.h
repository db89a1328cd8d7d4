#pragma once

#include <cstdint>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model/model_config.h"

namespace latentd {

// The extents that weights have, in terms of the config.
enum class Extent : uint8_t { kOne, kVocab, kHidden, kMlp, kQuery, kKeyValue, kContext };

// Which rows of a stored tensor a weight is: all, or a part of a fused q | k | v.
enum class RowSlice : uint8_t { kAll, kQuery, kKey, kValue };

// Whose heads' rows a RoPE pairs; GGUF files of some families store these rows in another order.
enum class RotaryRows : uint8_t { kNone, kQuery, kKey };

enum class Presence : uint8_t {
  kAlways,
  kUntied,    // unless the embeddings are tied
  kOptional,  // in every layer or in none
};

// One canonical weight (checkpoint.h) and where each file format keeps it. "N" in a name stands for
// the layer.
struct WeightRule {
  std::string_view name;
  std::string_view hf;  // without the family's prefix
  std::string_view gguf;
  Extent rows = Extent::kOne;  // kOne: a vector
  Extent cols = Extent::kHidden;
  Presence presence = Presence::kAlways;
  RotaryRows rotary = RotaryRows::kNone;
  RowSlice slice = RowSlice::kAll;
  bool hf_transposed = false;  // stored [in, out]

  bool per_layer() const { return name.starts_with("layers.N."); }
};

// The names under which a family's config.json keeps what every model has.
struct HfConfigKeys {
  const char* num_layers;
  const char* hidden_dim;
  const char* num_heads;
  const char* num_kv_heads;  // null: as many as heads
  const char* mlp_dim;       // absent in the file: 4 * hidden_dim, where mlp_optional
  const char* max_context;
  const char* norm_epsilon;
  const char* activation;
  bool mlp_optional;
};

// A config.json setting that changes the arithmetic in a way that is not supported.
struct RefusedSetting {
  const char* key;
  bool value;
};

// A row of the table: everything that loading needs to know about a model family.
struct Family {
  std::string_view name;             // also GGUF's general.architecture
  std::string_view hf_architecture;  // in config.json's "architectures"
  std::string_view hf_prefix;        // before tensor names; files without it are read as well
  HfConfigKeys hf_keys;
  absl::Span<const std::string_view> activations;  // names of config.json that mean `activation`
  absl::Span<const RefusedSetting> refused;
  PositionKind position;
  NormKind norm;
  ActivationKind activation;
  bool tied_by_default;        // what an absent tie_word_embeddings means
  bool gguf_interleaved_rope;  // GGUF files hold q and k rows as adjacent pairs (x[2i], x[2i+1])
  absl::Span<const WeightRule> weights;
};

absl::Span<const Family> Families();

// UNIMPLEMENTED naming the architecture and the supported ones.
absl::StatusOr<const Family*> FindHfFamily(std::string_view architecture);
absl::StatusOr<const Family*> FindGgufFamily(std::string_view architecture);

// The number that `extent` stands for.
int64_t ExtentOf(Extent extent, const ModelConfig& config);

}  // namespace latentd
