#include "engine/model/weights.h"

#include <cmath>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/status_macros.h"

namespace latentd {
namespace {

std::vector<float> ToFloats(const TensorView& view) {
  std::vector<float> values(view.rows * view.cols);
  for (int64_t r = 0; r < view.rows; ++r) {
    DequantizeRow(view, r, absl::MakeSpan(values).subspan(r * view.cols, view.cols));
  }
  return values;
}

// Reads one model's tensors by canonical name and prepares them for one backend.
class Loader {
 public:
  Loader(const Checkpoint& checkpoint, Ops& ops) : checkpoint_(checkpoint), ops_(ops) {}

  absl::StatusOr<TensorView> Require(const std::string& name) const {
    const std::optional<TensorView> view = checkpoint_.Find(name);
    if (!view.has_value())
      return absl::NotFoundError(absl::StrCat("the model has no tensor ", name));
    return *view;
  }

  std::vector<float> OptionalVector(const std::string& name) const {
    const std::optional<TensorView> view = checkpoint_.Find(name);
    return view.has_value() ? ToFloats(*view) : std::vector<float>();
  }

  absl::StatusOr<NormWeights> Norm(const std::string& name) const {
    ASSIGN_OR_RETURN(const TensorView weight, Require(absl::StrCat(name, ".weight")));
    return NormWeights{.weight = ToFloats(weight),
                       .bias = OptionalVector(absl::StrCat(name, ".bias"))};
  }

  absl::StatusOr<LinearWeights> Prepare(const TensorView& view, std::vector<float> bias) {
    ASSIGN_OR_RETURN(std::unique_ptr<Weight> weight, ops_.PrepareWeight(view));
    bytes_ += weight->bytes();
    return LinearWeights{.weight = std::move(weight), .bias = std::move(bias)};
  }

  absl::StatusOr<LinearWeights> Linear(const std::string& name) {
    ASSIGN_OR_RETURN(const TensorView view, Require(absl::StrCat(name, ".weight")));
    return Prepare(view, OptionalVector(absl::StrCat(name, ".bias")));
  }

  int64_t bytes() const { return bytes_; }

 private:
  const Checkpoint& checkpoint_;
  Ops& ops_;
  int64_t bytes_ = 0;
};

}  // namespace

std::vector<CacheLayer> CacheLayersOf(const ModelConfig& config, const Latents* latents,
                                      Codec full_codec) {
  std::vector<CacheLayer> layers;
  for (int l = 0; l < config.num_layers; ++l) {
    layers.push_back(latents != nullptr
                         ? latents->layers[l].cache
                         : FullCacheLayer(config.num_kv_heads, config.head_dim, full_codec));
  }
  return layers;
}

absl::StatusOr<ModelWeights> LoadWeights(const Checkpoint& checkpoint, const WeightOptions& options,
                                         Ops& ops) {
  const ModelConfig& config = checkpoint.config();
  const Latents* latents = options.latents;
  const std::vector<CacheLayer> cache_layers = CacheLayersOf(config, latents, options.full_codec);
  Loader loader(checkpoint, ops);
  ModelWeights model;
  ASSIGN_OR_RETURN(model.token_embedding, loader.Require("token_embedding"));
  float softmax_scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim));
  if (config.position == PositionKind::kRope) {
    const RopeFrequencies frequencies = ComputeRopeFrequencies(config.rope, options.max_context);
    softmax_scale *= frequencies.score_factor;
    model.rope = std::make_unique<RopeTable>(BuildRopeTable(frequencies, options.max_positions));
  } else {
    ASSIGN_OR_RETURN(model.position_embedding, loader.Require("position_embedding"));
  }

  for (int l = 0; l < config.num_layers; ++l) {
    const std::string prefix = absl::StrCat("layers.", l, ".");
    LayerWeights layer;
    ASSIGN_OR_RETURN(layer.attention_norm, loader.Norm(prefix + "attention_norm"));
    ASSIGN_OR_RETURN(layer.mlp_norm, loader.Norm(prefix + "mlp_norm"));
    ASSIGN_OR_RETURN(layer.q, loader.Linear(prefix + "q"));
    ASSIGN_OR_RETURN(layer.o, loader.Linear(prefix + "o"));
    if (config.activation == ActivationKind::kSiluGated) {
      ASSIGN_OR_RETURN(layer.gate, loader.Linear(prefix + "gate"));
    }
    ASSIGN_OR_RETURN(layer.up, loader.Linear(prefix + "up"));
    ASSIGN_OR_RETURN(layer.down, loader.Linear(prefix + "down"));

    AttentionSpec spec{.path = AttentionPath::kFull,
                       .num_heads = config.num_heads,
                       .num_kv_heads = config.num_kv_heads,
                       .head_dim = config.head_dim,
                       .softmax_scale = softmax_scale,
                       .cache = cache_layers[l],
                       .rope = model.rope.get()};
    std::vector<float> k_up, v_up, k_bias, v_bias;  // alive until the plan has copied them
    if (latents == nullptr) {
      ASSIGN_OR_RETURN(layer.k, loader.Linear(prefix + "k"));
      ASSIGN_OR_RETURN(layer.v, loader.Linear(prefix + "v"));
    } else {
      const LatentLayer& factors = latents->layers[l];
      ASSIGN_OR_RETURN(layer.k, loader.Prepare(factors.k_down, {}));
      ASSIGN_OR_RETURN(layer.v, loader.Prepare(factors.v_down, {}));
      k_up = ToFloats(factors.k_up);
      v_up = ToFloats(factors.v_up);
      k_bias = loader.OptionalVector(prefix + "k.bias");
      v_bias = loader.OptionalVector(prefix + "v.bias");
      spec.path = model.rope != nullptr ? AttentionPath::kReconstruct : AttentionPath::kAbsorbed;
      spec.k_up = k_up.data();
      spec.v_up = v_up.data();
      spec.k_bias = k_bias.empty() ? nullptr : k_bias.data();
      spec.v_bias = v_bias.empty() ? nullptr : v_bias.data();
    }
    ASSIGN_OR_RETURN(layer.attention, ops.PrepareAttention(spec));
    model.layers.push_back(std::move(layer));
  }

  ASSIGN_OR_RETURN(model.final_norm, loader.Norm("final_norm"));
  if (config.tied_embeddings) {
    ASSIGN_OR_RETURN(model.lm_head, loader.Prepare(model.token_embedding, {}));
  } else {
    ASSIGN_OR_RETURN(const TensorView head, loader.Require("lm_head"));
    ASSIGN_OR_RETURN(model.lm_head, loader.Prepare(head, {}));
  }
  model.bytes = loader.bytes();
  return model;
}

}  // namespace latentd
