#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/batch.h"

namespace latentd {

// What the layers above need to know about a loaded model and its cache. Constant.
struct EngineInfo {
  std::string model_name;
  std::string family;  // a row of the families table: "llama"
  int vocab_size = 0;
  int num_layers = 0;
  int max_context = 0;            // tokens of one sequence, prompt and output
  int64_t num_blocks = 0;         // of kBlockTokens tokens each
  int num_sequences = 0;          // seats: sequences that can be at work at once
  int sliding_window = 0;         // > 0: no token sees positions this far behind it or further
  double bytes_per_token = 0;     // of this cache, all metadata counted
  double bytes_per_sequence = 0;  // once per sequence at work: exact sinks, the page being filled
  double k_bytes_per_token = 0;
  double v_bytes_per_token = 0;
  double full_bytes_per_token = 0;  // of the uncompressed 16-bit cache
  int64_t weight_bytes = 0;         // of the model's matrices, in the backend's order
  int64_t factor_bytes = 0;         // of the latents' factors, as a latents file holds them
  int64_t pool_bytes = 0;  // of the cache: num_blocks, and what num_sequences keep beside them
  // Of a device with memory of its own, else 0: its size, and what was in use before the pool was
  // made (by the weights, the largest step where --cache-fraction had it measured, others).
  int64_t device_bytes = 0;
  int64_t device_bytes_used = 0;
  std::string cache_name;      // "full f16", or how the latents were made
  std::string device;          // Ops::name(): "cpu (AVX3_DL)"
  std::string weight_type;     // Ops::weight_type(): "as stored"
  std::string decode_kernels;  // AttentionPlan::decode_kernel() of all layers: "direct (32 layers)"
};

// Computes steps of a batch of sequences. One thread at a time.
class Engine {
 public:
  virtual ~Engine() = default;
  virtual const EngineInfo& info() const = 0;

  // Computes every row of `batch` (see Batch), writes its cache rows and draws its samples. An
  // error means that the engine is dead: no later call succeeds. A row with NaN logits is no error:
  // its SampleResult says ok = false.
  virtual absl::StatusOr<StepOutput> Step(const Batch& batch) = 0;

  // Raw logits [rows.size(), vocab_size] of rows of the latest step; valid until the next call of
  // any kind. For measurements that need whole distributions; ask for some tens of rows at a time.
  virtual absl::StatusOr<absl::Span<const float>> Logits(absl::Span<const int32_t> rows) = 0;
};

}  // namespace latentd
