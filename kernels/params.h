#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"
#include "kernels/cache_layout.h"
#include "kernels/dtype.h"

namespace latentd {

class Weight;         // kernels/ops.h
class AttentionPlan;  // kernels/ops.h

// Arguments of every op. They are borrowed until the op is done. Pointers point to memory of the
// backend's device (kernels/device.h), spans to the host's. T is the number of token rows of the
// step, of all its sequences together; 0 is allowed. Activations are fp32, row-major and dense
// unless a stride is named; an output overlaps no input unless it says so, and what it held before
// is not read.

// What all layers of a step share, in host memory: an Ops is given it once (Ops::BeginStep), so
// that a device need not fetch it again for every op. An op's spans are these, or of the op alone.
// They are alive as long as ops of the step follow, Gather and those without spans excepted.
struct StepInputs {
  absl::Span<const int32_t> token_ids;        // [T]
  absl::Span<const int32_t> positions;        // [T]
  absl::Span<const int64_t> slots;            // [T]
  absl::Span<const int32_t> cu_q_lens;        // [S + 1]
  absl::Span<const int32_t> kv_lens;          // [S]
  absl::Span<const int32_t> block_table;      // [S, max_blocks]
  absl::Span<const int32_t> seat_of;          // [S]
  absl::Span<const int32_t> first_step_page;  // [S + 1]
};

// out[t] = table[token_ids[t]] (+ position_table[positions[t]]).
struct EmbedParams {
  absl::Span<const int32_t> token_ids;  // [T], in [0, vocab)
  absl::Span<const int32_t> positions;  // [T]; read only with a position table
  TensorView table;  // [vocab, hidden]; in fp16 where the device cannot read the host's memory
  const TensorView* position_table = nullptr;  // [max_context, hidden] or null
  float* out = nullptr;                        // [T, hidden]
};

// out = (in - m) / sqrt(mean((in - m)^2) + epsilon) * weight + bias over each row, where m is 0
// (kRms; Zhang and Sennrich 2019) or the row's mean (kLayer; Ba et al. 2016).
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

//   kSiluGated  gate / (1 + e^-gate) * up
//   kGeluTanh   gate (1 + tanh(sqrt(2 / pi) (gate + 0.044715 gate^3))) / 2 (Hendrycks, Gimpel 2016)
enum class ActivationKind : uint8_t { kSiluGated, kGeluTanh };

struct ActivationParams {
  ActivationKind kind = ActivationKind::kSiluGated;
  int64_t rows = 0;
  int64_t dims = 0;
  const float* gate = nullptr;  // [rows, dims]
  const float* up = nullptr;    // [rows, dims] for gated kinds, else null
  float* out = nullptr;         // [rows, dims], may be gate or up
};

// One product of a group that shares its input: out = (in x weight^T + bias) + out, without the
// parts that are not there. A backend may round the input to 8 bits where the weight is quantised
// (the CPU does: int8 in blocks of 32 values, each with its scale), and the input and the weight to
// bf16 (CUDA does).
struct Product {
  const Weight* weight = nullptr;  // [n, k], from PrepareWeight of the same Ops
  const float* bias = nullptr;     // [n] or null
  float* out = nullptr;            // [T, out_stride]
  int64_t out_stride = 0;          // in values, >= n
  bool accumulate = false;         // add to what `out` holds (residual connections)
};

struct MatmulParams {
  const float* in = nullptr;  // [T, k]
  int64_t rows = 0;           // T
  int64_t k = 0;
  absl::Span<const Product> products;  // outputs overlap neither each other nor an input
  // Ops to be done before and after the products, or null: `norm` writes `in`, and `activation`
  // takes all that the products write, dense, one of them or gate and up. What only the next one
  // reads (`in`, and outputs that are not the activation's) may be left unwritten.
  const NormParams* norm = nullptr;
  const ActivationParams* activation = nullptr;
};

// out[n] = in[rows[n]]: rows of activations, brought together.
struct GatherParams {
  const float* in = nullptr;  // [T, dims]
  int64_t dims = 0;
  absl::Span<const int32_t> rows;  // [N], in [0, T)
  float* out = nullptr;            // [N, dims]
};

// cos and sin of every position: table[position * pairs + j] for the pair (x[j], x[j + pairs]),
// half-split as in Hugging Face. Plain rotations (cos^2 + sin^2 = 1, the angle proportional to the
// position, 0 at 0), so kernels may add angles; a scaling's attention factor belongs in
// AttentionSpec::softmax_scale. An Ops may keep a copy of a table that it has seen: none takes its
// place while the Ops lives.
struct RopeTable {
  int pairs = 0;  // rotated dims / 2; dims from 2 * pairs on are left alone
  int max_positions = 0;
  std::vector<float> cos;  // [max_positions, pairs]
  std::vector<float> sin;
};

// (x, y) = (x cos - y sin, y cos + x sin) for the pairs of every head; dims from 2 * pairs on stay.
struct RopeParams {
  const RopeTable* table = nullptr;
  absl::Span<const int32_t> positions;  // [T], in [0, table->max_positions)
  int heads = 0;
  int head_dim = 0;
  float* x = nullptr;  // [T, heads, head_dim], in place
};

// ---- Attention ----

// What a layer's cache holds, and so how scores come about. h is a cached latent.
enum class AttentionPath : uint8_t {
  kFull,         // the cache holds keys (after RoPE) and values
  kReconstruct,  // latents; keys are rebuilt in the kernel: k = RoPE(norm(k_up h + k_bias))
  kAbsorbed,     // latents, no RoPE: scores are (k_up^T q) . h
};
const char* Name(AttentionPath path);  // "full", "reconstruct", "absorbed"

// What is constant about one layer's attention; checked once, at load (Ops::PrepareAttention).
// Query head i reads KV head i / (num_heads / num_kv_heads), KV head g reads latent head
// g / (num_kv_heads / latent_heads), of K and of V each.
struct AttentionSpec {
  AttentionPath path = AttentionPath::kFull;
  int num_heads = 0;
  int num_kv_heads = 0;
  int head_dim = 0;
  float softmax_scale = 0.0f;       // scores are softmax_scale * q . k; > 0
  CacheLayer cache;                 // kFull: num_kv_heads heads of head_dim dims, rounded up to 16
  const RopeTable* rope = nullptr;  // kReconstruct; outlives the plan
  int window = 0;  // > 0: position n sees only the positions above n - window (and no sink below)
  // ALiBi (Press et al. 2022): alibi_slopes[head] * (position - n) is added to the score of the row
  // at n for `position` <= n, after softmax_scale. Paths without RoPE. [num_heads] or null; copied
  // by PrepareAttention.
  const float* alibi_slopes = nullptr;

  // Latent paths. The factors are fp32, finite, row-major, and copied by PrepareAttention. Row
  // g * head_dim + i makes dim i of KV head g:
  //   k_up [num_kv_heads * head_dim][k.dims()], v_up [num_kv_heads * head_dim][v.dims()]
  //   k_bias, v_bias [num_kv_heads * head_dim] or null, added after k_up / v_up. kAbsorbed takes no
  //   k_bias: it shifts all scores of a query alike (so exact sinks are appended without it).
  //   k_norm [head_dim] or null (kReconstruct): a rebuilt key is normalised before RoPE (Qwen3's
  //   QK-norm), x = x / sqrt(mean(x^2) + k_norm_epsilon) * k_norm. 1 / sqrt(...) is taken when a
  //   token is appended, from its decoded codes (an own page's from its 16-bit latents), and cached
  //   as fp16, at most kMaxKeyNorm (cache.key_norms). Backends may differ by one unit in its last
  //   place.
  //
  // Precision: a backend may multiply codes as integers. kReconstruct: k_up rounded to int8, one
  // scale per row or pair of rows, and codes of several segments of at most 4 bits brought to one
  // int8 scale per token; together that moves a key by about 1 % of its norm, beside the 10 % of
  // 4-bit codes themselves. Factors of codes of 8 bits and more, absorbed queries and softmax
  // weights must be finer, about 2^-15 of the largest, so that the codes bound the error.
  // Everything else is fp32. On a GPU numbers that tensor cores multiply are fp16 (2^-11 of each),
  // keys rebuilt from codes of at most 4 bits bf16 (2^-9), and sums fp32.
  const float* k_up = nullptr;
  const float* v_up = nullptr;
  const float* k_bias = nullptr;
  const float* v_bias = nullptr;
  const float* k_norm = nullptr;
  float k_norm_epsilon = 0.0f;
};

// The cache of one layer as a step sees it, and which tokens belong to whom. Sequence i of S owns
// the query rows [cu_q_lens[i], cu_q_lens[i + 1]), possibly none; they are its last tokens, at
// positions kv_lens[i] - q_len .. kv_lens[i] - 1. Position n lies in block
// block_table[i][n / 64], at offset n % 64.
struct CacheView {
  uint8_t* layer = nullptr;  // start of this layer's region in the pool; aligned to 64
  int64_t block_bytes = 0;   // from a block of the region to the next: CacheLayer::block_bytes()
  absl::Span<const int32_t> cu_q_lens;    // [S + 1], from 0 to T
  absl::Span<const int32_t> kv_lens;      // [S], tokens of the sequence after this step
  absl::Span<const int32_t> block_table;  // [S, max_blocks], -1 past a sequence's blocks
  // (and before its window: blocks that no later row can see may have been given back)
  int64_t max_blocks = 0;
  absl::Span<const int64_t> slots;  // [T] block id * 64 + offset: where token t is written

  // What sequences keep beside their blocks: exact sinks and own pages (cache_layout.h).
  uint8_t* seats = nullptr;           // start of this layer's seats in the pool; aligned to 64
  absl::Span<const int32_t> seat_of;  // [S] the sequence's seat
  // Own pages. The rows of a step can lie in several pages of a sequence. The last of them is kept
  // in the seat; the others are needed in this step alone, and lie in `step_pages`, page p of
  // sequence i at index first_step_page[i] + p - (its first row's position) / 64 (cache_view.h).
  uint8_t* step_pages = nullptr;              // own_page_bytes() each; aligned to 64
  absl::Span<const int32_t> first_step_page;  // [S + 1]
};

// Encodes one row per token into its slot. k and v hold what the planes store, head after head:
// keys after RoPE and values for kFull (num_kv_heads x head_dim; dims that pad a head are written
// as 0), latents otherwise (latent_heads x dims). A row with a NaN or an infinity reads
// back with one. Nothing else in the pool changes: neither other tokens' bits nor other blocks.
//
// With own pages it also writes the row in 16 bits to its own page. Where the rows lie in several
// pages, the first one's earlier tokens are copied from the seat to step_pages before the last
// page's rows take the seat over. With sinks it also writes the step's rows at positions below
// `sinks` to the seat.
struct AppendCacheParams {
  const AttentionPlan* plan = nullptr;
  CacheView cache;
  const float* k = nullptr;  // [T, k_stride]
  int64_t k_stride = 0;      // in values
  const float* v = nullptr;  // [T, v_stride]
  int64_t v_stride = 0;
  // Exact keys (after norm and RoPE) and values [n, sink_dims] of the step's n rows at positions
  // below cache.sinks, in the order of the rows.
  const float* sink_k = nullptr;
  const float* sink_v = nullptr;
};

// Causal attention from the cache alone (the step's own tokens were appended before): the row at
// position n sees the positions 0 .. n (of its window): those below cache.sinks from the exact
// sinks, those of its own page, n / 64, from the own page if the layer has one, all others from the
// blocks. Splits are fixed ranges of kSplitTokens absolute positions, merged in order after the
// sinks, so an output row depends on its own query and its sequence's cache only. Values mix as
// they are stored; v_up and v_bias are applied once per split, before the merge (the sinks have
// neither).
//
// Only blocks with a position that some row sees are read. What lies past a row's own position, be
// it NaN, does not reach its output.
struct AttentionParams {
  const AttentionPlan* plan = nullptr;
  CacheView cache;
  const float* q = nullptr;  // [T, num_heads, head_dim], after RoPE
  float* out = nullptr;      // [T, num_heads * head_dim]
};
inline constexpr int kSplitTokens = 1024;
inline constexpr float kMaxKeyNorm = 65504.0f;  // cached inverse norms of keys, the largest half

// ---- Sampling ----

// One row of logits to draw a token from. The order is the field's: penalties, min-tokens mask,
// temperature, top_k, top_p, min_p, draw. temperature 0 is greedy (the smallest id among equals).
// reference/sampling.h defines each step. Ids in `tokens` and `banned` that are outside of the
// vocabulary are passed over.
struct SampleRow {
  float temperature = 1.0f;         // >= 0
  int top_k = 0;                    // 0: all
  float top_p = 1.0f;               // (0, 1]
  float min_p = 0.0f;               // [0, 1]
  float repetition_penalty = 1.0f;  // > 0; over prompt and output (Keskar et al. 2019)
  float presence_penalty = 0.0f;    // over output
  float frequency_penalty = 0.0f;   // over output
  uint64_t seed = 0;
  int64_t position = 0;  // of the token that is drawn: the counter of the random numbers
  absl::Span<const int32_t> tokens;  // the sequence so far
  int num_prompt_tokens = 0;         // tokens[0, n) are the prompt, the rest is output
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

// Natural log of softmax over each row, at one token.
struct LogProbabilityParams {
  const float* logits = nullptr;  // [N, vocab]
  int64_t vocab = 0;
  absl::Span<const int32_t> token_ids;  // [N], in [0, vocab)
  absl::Span<float> results;            // [N], in host memory
};

struct SampleParams {
  const float* logits = nullptr;  // [L, vocab]
  int64_t vocab = 0;
  absl::Span<const SampleRow> rows;  // [L]
  absl::Span<SampleResult> results;  // [L], in host memory
};

}  // namespace latentd
