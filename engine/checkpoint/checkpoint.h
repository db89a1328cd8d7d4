#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/model_config.h"
#include "kernels/dtype.h"

namespace latentd {

// A vocabulary as GGUF metadata states it, moved into plain data. Token types are GGUF's (1 normal,
// 2 unknown, 3 control, 4 user defined, 5 unused, 6 byte).
struct GgufVocabulary {
  std::string model;          // "gpt2" (BPE) or "llama" (SentencePiece)
  std::string pre_tokenizer;  // "llama-bpe", "smollm", "qwen2", "gpt-2", ...
  std::vector<std::string> tokens;
  std::vector<float> scores;         // SentencePiece; empty for BPE
  std::vector<int32_t> token_types;  // empty, or one per token
  std::vector<std::string> merges;   // BPE: "left right"
  int32_t bos_token_id = -1, eos_token_id = -1, unknown_token_id = -1;
  std::optional<bool> add_bos, add_eos, add_space_prefix;
};

// Where the text layer finds the tokenizer of a model: a Hugging Face folder's files, or GGUF
// metadata.
struct TokenizerSource {
  std::string tokenizer_json;         // contents; empty when there is none
  std::string tokenizer_config_json;  // contents; empty when there is none
  // chat_template.jinja, or from tokenizer_config.json / GGUF; empty: none
  std::string chat_template;
  std::optional<GgufVocabulary> gguf;
  std::string path;  // of the model, for errors
};

struct DummyOptions {
  uint64_t seed = 1;
  int min_context = 0;  // random weights know no limit: max_context is raised to this
};

// An opened model: its config, and its tensors under canonical names whatever the file format and
// family:
//
//   token_embedding [vocab, hidden]
//   position_embedding [max_context, hidden]     learned positions alone
//   embedding_norm.weight|bias [hidden]          where the config has one
//   final_norm.weight|bias [hidden]
//   lm_head [vocab, hidden]                      absent when tied
//   layers.N.attention_norm.weight|bias, layers.N.{q,k,v,o}.weight|bias
//   layers.N.{q,k}_norm.weight [head_dim]        QK-norm alone
//   layers.N.mlp_norm.weight|bias, layers.N.{gate,up,down}.weight|bias     no gate if ungated
//
// Weights are [out, in] row-major. q and k rows are in the half-split RoPE order of Hugging Face: a
// GGUF file's are un-permuted row by row (whole quantised rows). Everything is checked at Open: a
// tensor whose shape disagrees with the config gives an error that names it and both shapes.
// Immutable, thread-safe.
class Checkpoint {
 public:
  virtual ~Checkpoint() = default;

  // `path` is a Hugging Face folder or a .gguf file. The tensors stay memory-mapped.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> Open(const std::string& path);

  // A model of random weights (DummyWeights): `path` is a Hugging Face folder, of which all but the
  // tensors is read, or a config.json by any name. Without a tokenizer it gets a DummyTokenizer.
  static absl::StatusOr<std::unique_ptr<Checkpoint>> OpenDummy(const std::string& path,
                                                               const DummyOptions& options);

  virtual const ModelConfig& config() const = 0;
  virtual const TokenizerSource& tokenizer() const = 0;

  // The tensor, valid as long as the checkpoint; nullopt when this model has none of that name.
  virtual std::optional<TensorView> Find(std::string_view name) const = 0;
};

// Identifies a base model: config facts and a hash of its k and v projections. Lower-case hex, 32
// digits.
std::string Fingerprint(const Checkpoint& checkpoint);

}  // namespace latentd
