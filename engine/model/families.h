#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "engine/model/model_config.h"

namespace latentd {

// The extents that weights have, in terms of the config.
enum class Extent : uint8_t { kOne, kVocab, kHidden, kMlp, kQuery, kKeyValue, kHead, kContext };

// Which rows of a stored tensor a weight is: all, or a part of fused q, k and v.
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
  // Fused rows are [heads][q, k, v][head_dim] in Hugging Face files, else q | k | v, as in GGUF.
  bool hf_fused_by_head = false;

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
  const char* activation;  // null: the family has one alone
  bool mlp_optional;
  // Older files' names, read where hidden_dim or num_heads is absent.
  const char* old_hidden_dim = nullptr;
  const char* old_num_heads = nullptr;
  // What an absent key means; 0: max_context is required, head_dim is hidden_dim / num_heads.
  int default_max_context = 0;
  int default_head_dim = 0;
  const char* sliding_window = nullptr;  // null in the file: no window; null here: never one
  int default_sliding_window = 0;        // what an absent key means
};

// A config.json setting that changes the arithmetic in a way that is not supported.
struct RefusedSetting {
  const char* key;
  bool value;
};

// A row of the table: everything that loading needs to know about a model family.
struct Family {
  std::string_view name;
  std::string_view hf_architecture;  // in config.json's "architectures"
  // general.architecture of GGUF files, which are read by the first row that has it: they make no
  // difference between Mistral and Llama.
  std::string_view gguf_architecture;
  std::string_view hf_prefix;  // before tensor names; files without it are read as well
  HfConfigKeys hf_keys;
  absl::Span<const std::string_view> activations;  // names of config.json that mean `activation`
  absl::Span<const RefusedSetting> refused;
  PositionKind position;
  NormKind norm;
  ActivationKind activation;
  bool tied_by_default = false;  // what an absent tie_word_embeddings means
  // GGUF files hold q and k rows as adjacent pairs (x[2i], x[2i+1])
  bool gguf_interleaved_rope = false;
  bool gguf_sliding_window = false;  // a GGUF file's attention.sliding_window is every layer's
  bool qk_norm = false;
  bool embedding_norm = false;
  absl::Span<const WeightRule> weights;
};

absl::Span<const Family> Families();

// The row called `name`, or null.
const Family* FindFamily(std::string_view name);

// UNIMPLEMENTED naming the architecture and the supported ones.
absl::StatusOr<const Family*> FindHfFamily(std::string_view architecture);
absl::StatusOr<const Family*> FindGgufFamily(std::string_view architecture);

// `name` with the layer in place of its "N", if it has one.
std::string WithLayer(std::string_view name, int layer);

// The number that `extent` stands for.
int64_t ExtentOf(Extent extent, const ModelConfig& config);

}  // namespace latentd
