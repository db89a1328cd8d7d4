#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/cache_layout.h"
#include "kernels/dtype.h"

namespace latentd {

class Weight;         // kernels/ops.h
class AttentionPlan;  // kernels/ops.h

// Arguments of every op. Pointers are borrowed; T is the number of token rows of the step. All
// activations are fp32, row-major and dense unless a stride is named.

struct EmbedParams {
  absl::Span<const int32_t> token_ids;         // [T]
  absl::Span<const int32_t> positions;         // [T]; read only with a position table
  TensorView table;                            // [vocab, hidden]
  const TensorView* position_table = nullptr;  // [max_context, hidden] or null
  float* out = nullptr;                        // [T, hidden]
};

enum class NormKind : uint8_t { kRms, kLayer };

struct NormParams {
  NormKind kind = NormKind::kRms;
  float epsilon = 1e-5f;
  int64_t rows = 0;
  int dims = 0;
  const float* in = nullptr;      // [rows, dims]
  const float* weight = nullptr;  // [dims]
  const float* bias = nullptr;    // [dims] or null
  float* out = nullptr;           // [rows, dims], may be `in`
};

// One product of a group that shares its input: out = in x weight^T (+ bias) (+ out, when
// accumulating).
struct Product {
  const Weight* weight = nullptr;  // [n, k]
  const float* bias = nullptr;     // [n] or null
  float* out = nullptr;            // [T, out_stride]
  int64_t out_stride = 0;          // in values, >= n
  bool accumulate = false;         // add to what `out` holds (residual connections)
};

struct MatmulParams {
  const float* in = nullptr;  // [T, k]
  int64_t rows = 0;           // T
  int64_t k = 0;
  absl::Span<const Product> products;
};

// cos and sin of every position: table[position * pairs + j] for the pair (x[j], x[j + pairs]),
// half-split as in Hugging Face. Plain rotations: a scaling's attention factor belongs in
// AttentionSpec::softmax_scale.
struct RopeTable {
  int pairs = 0;  // rotated dims / 2; dims from 2 * pairs on are left alone
  int max_positions = 0;
  std::vector<float> cos;  // [max_positions, pairs]
  std::vector<float> sin;
};

struct RopeParams {
  const RopeTable* table = nullptr;
  absl::Span<const int32_t> positions;  // [T]
  int heads = 0;
  int head_dim = 0;
  float* x = nullptr;  // [T, heads, head_dim], in place
};

enum class ActivationKind : uint8_t { kSiluGated, kGeluTanh };

struct ActivationParams {
  ActivationKind kind = ActivationKind::kSiluGated;
  int64_t rows = 0;
  int64_t dims = 0;
  const float* gate = nullptr;  // [rows, dims]
  const float* up = nullptr;    // [rows, dims] for gated kinds, else null
  float* out = nullptr;         // [rows, dims], may be gate or up
};

// ---- Attention
// ------------------------------------------------------------------------------------------------------

enum class AttentionPath : uint8_t {
  kFull,         // the cache holds keys (after RoPE) and values
  kReconstruct,  // latents; keys are rebuilt in the kernel: k = RoPE(k_up h + k_bias)
  kAbsorbed,     // latents, no RoPE: scores are (k_up^T q) . h + q . k_bias
};
const char* Name(AttentionPath path);

// What is constant about one layer's attention; checked once, at load (Ops::PrepareAttention).
struct AttentionSpec {
  AttentionPath path = AttentionPath::kFull;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  float softmax_scale = 0.0f;
  CacheLayer cache;
  const RopeTable* rope = nullptr;  // kReconstruct; outlives the plan

  // Latent paths. s = num_kv_heads / latent_heads KV heads share a latent head. fp32, row-major,
  // copied by PrepareAttention:
  //   k_up [latent_heads][s * head_dim][k.dims()], v_up [latent_heads][s * head_dim][v.dims()]
  //   k_bias, v_bias [num_kv_heads * head_dim] or null, added after k_up / v_up
  const float* k_up = nullptr;
  const float* v_up = nullptr;
  const float* k_bias = nullptr;
  const float* v_bias = nullptr;
};

// The cache of one layer as a step sees it, and which tokens belong to whom. Sequence i of S owns
// the query rows [cu_q_lens[i], cu_q_lens[i+1]); they are its last tokens, at positions kv_lens[i]
// - q_len .. kv_lens[i] - 1.
struct CacheView {
  uint8_t* layer = nullptr;  // start of this layer's region in the pool
  int64_t block_bytes = 0;
  absl::Span<const int32_t> cu_q_lens;  // [S + 1]
  absl::Span<const int32_t> kv_lens;    // [S], tokens of the sequence after this step
  absl::Span<const int32_t>
      block_table;  // [S, max_blocks], entries past a sequence's blocks are -1
  int64_t max_blocks = 0;
  absl::Span<const int32_t> positions;  // [T]
  absl::Span<const int64_t> slots;      // [T] block id * 64 + offset: where token t is written
};

// Encodes one row per token into its slot. k and v hold what the planes store: after RoPE for
// kFull, latents otherwise.
struct AppendCacheParams {
  const AttentionPlan* plan = nullptr;
  CacheView cache;
  const float* k =
      nullptr;  // [T, k_stride], latent_heads x dims values (kv_heads x head_dim for kFull)
  int64_t k_stride = 0;
  const float* v = nullptr;
  int64_t v_stride = 0;
};

// Causal attention from the cache alone (the step's own tokens were appended before). Splits are
// fixed ranges of 1024 absolute positions, merged in order, so an output row depends on its own
// query and its sequence's cache only.
struct AttentionParams {
  const AttentionPlan* plan = nullptr;
  CacheView cache;
  const float* q = nullptr;  // [T, num_heads, head_dim], after RoPE
  float* out = nullptr;      // [T, num_heads * head_dim]
};
inline constexpr int kSplitTokens = 1024;

// ---- Sampling
// -------------------------------------------------------------------------------------------------------

// One row of logits to draw a token from. The order is the field's: penalties, min-tokens mask,
// temperature, top_k, top_p, min_p, draw. temperature 0 is greedy (the smallest id among equals).
struct SampleRow {
  float temperature = 1.0f;
  int top_k = 0;  // 0: all
  float top_p = 1.0f;
  float min_p = 0.0f;
  float repetition_penalty = 1.0f;  // over prompt and output (Keskar et al. 2019)
  float presence_penalty = 0.0f;    // over output
  float frequency_penalty = 0.0f;   // over output
  uint64_t seed = 0;
  int64_t position = 0;  // of the token that is drawn: the counter of the random numbers
  absl::Span<const int32_t> tokens;  // the sequence so far
  int num_prompt_tokens = 0;         // tokens[0, n) are the prompt
  absl::Span<const int32_t> banned;  // ids that may not be drawn (stop ids before min_tokens)
  int num_logprobs = -1;             // -1: none; k >= 0: the drawn token's and the k likeliest
};

struct TokenLogprob {
  int32_t token_id = 0;
  float logprob = 0.0f;  // natural log of softmax over the raw logits
};

struct SampleResult {
  int32_t token_id = -1;
  bool ok = true;  // false: a NaN, +infinity or no finite logit (left); token_id is -1
  float logprob = 0.0f;
  std::vector<TokenLogprob> top;  // likeliest first
};

struct SampleParams {
  const float* logits = nullptr;  // [L, vocab]
  int64_t vocab = 0;
  absl::Span<const SampleRow> rows;  // [L]
  absl::Span<SampleResult> results;  // [L]
};

}  // namespace latentd
