#include "engine/model/weights.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/command_line.h"
#include "base/machine_memory.h"
#include "base/status_macros.h"
#include "engine/model/alibi.h"

namespace latentd {
namespace {

// Empty for a view without data.
std::vector<float> ToFloats(const TensorView& view) {
  if (view.data == nullptr) return {};
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
    NormWeights norm;
    ASSIGN_OR_RETURN(norm.weight, OnDevice(ToFloats(weight)));
    ASSIGN_OR_RETURN(norm.bias, OnDevice(OptionalVector(absl::StrCat(name, ".bias"))));
    return norm;
  }

  absl::StatusOr<LinearWeights> Prepare(const TensorView& view, const std::vector<float>& bias) {
    LinearWeights linear;
    ASSIGN_OR_RETURN(linear.weight, ops_.PrepareWeight(view));
    ASSIGN_OR_RETURN(linear.bias, OnDevice(bias));
    return linear;
  }

  absl::StatusOr<EmbeddingTable> Table(const std::string& name) {
    EmbeddingTable table;
    ASSIGN_OR_RETURN(table.view, Require(name));
    if (ops_.device().reads_host_memory()) return table;
    ASSIGN_OR_RETURN(table.copy, HalvesOf(table.view));
    table.view.dtype = DType::kF16;
    table.view.data = reinterpret_cast<const std::byte*>(table.copy.data());
    bytes_ += table.view.bytes();
    return table;
  }

  absl::StatusOr<DeviceArray<float>> OnDevice(const std::vector<float>& values) const {
    return DeviceArray<float>::CopyOf(ops_.device(), values);
  }

  absl::StatusOr<LinearWeights> Linear(const std::string& name) {
    ASSIGN_OR_RETURN(const TensorView view, Require(absl::StrCat(name, ".weight")));
    return Model(view, OptionalVector(absl::StrCat(name, ".bias")));
  }

  // A matrix of the model, not of its latents: bytes() counts it.
  absl::StatusOr<LinearWeights> Model(const TensorView& view, const std::vector<float>& bias) {
    ASSIGN_OR_RETURN(LinearWeights linear, Prepare(view, bias));
    bytes_ += linear.weight->bytes();
    return linear;
  }

  int64_t bytes() const { return bytes_; }

 private:
  // The matrix in fp16 in the device's memory, brought there in pieces, so that the host holds
  // little of it.
  absl::StatusOr<DeviceArray<uint16_t>> HalvesOf(const TensorView& view) const {
    constexpr int64_t kRowsAtOnce = 1024;
    Device& device = ops_.device();
    ASSIGN_OR_RETURN(auto halves, DeviceArray<uint16_t>::Create(device, view.rows * view.cols));
    std::vector<float> row(view.cols);
    std::vector<uint16_t> piece;
    for (int64_t begin = 0; begin < view.rows; begin += kRowsAtOnce) {
      piece.clear();
      for (int64_t r = begin; r < std::min(begin + kRowsAtOnce, view.rows); ++r) {
        DequantizeRow(view, r, absl::MakeSpan(row));
        for (const float value : row) piece.push_back(FloatToHalf(value));
      }
      device.CopyIn(halves.data() + begin * view.cols, piece.data(),
                    std::ssize(piece) * int64_t{sizeof(uint16_t)});
    }
    return halves;
  }

  const Checkpoint& checkpoint_;
  Ops& ops_;
  int64_t bytes_ = 0;
};

// a + b, where an empty vector is all zeros.
std::vector<float> Sum(std::vector<float> a, const std::vector<float>& b) {
  if (a.empty()) return b;
  for (size_t i = 0; i < b.size(); ++i) a[i] += b[i];
  return a;
}

std::vector<float> Negative(std::vector<float> values) {
  for (float& value : values) value = -value;
  return values;
}

const float* DataOrNull(const std::vector<float>& values) {
  return values.empty() ? nullptr : values.data();
}

// Whether the machine has the memory for the weights on a device that computes in it; another
// device says itself when it is full.
absl::Status CheckMemory(const Checkpoint& checkpoint, Ops& ops) {
  if (!ops.device().reads_host_memory()) return absl::OkStatus();
  const ModelConfig& config = checkpoint.config();
  int64_t bytes = 0;
  const auto add = [&](const std::string& name) {
    const std::optional<TensorView> view = checkpoint.Find(name);
    if (view.has_value()) bytes += view->bytes();
  };
  add(config.tied_embeddings ? "token_embedding" : "lm_head");
  for (int l = 0; l < config.num_layers; ++l) {
    for (const char* name : {"q", "k", "v", "o", "gate", "up", "down"}) {
      add(absl::StrCat("layers.", l, ".", name, ".weight"));
    }
  }
  if (bytes <= MachineMemory()) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat(
      "the weights, ", config.num_layers, " layers, take ", FormatBytes(static_cast<double>(bytes)),
      " of memory, this machine has ", FormatBytes(static_cast<double>(MachineMemory()))));
}

// What the attention of all layers shares.
struct ModelFacts {
  const ModelConfig& config;
  float softmax_scale;
  const RopeTable* rope;
  std::vector<float> alibi_slopes;
};

// The keys' and values' part of a full layer.
absl::Status LoadFullCache(Loader& loader, const std::string& prefix, const AttentionSpec& spec,
                           Ops& ops, LayerWeights* layer) {
  ASSIGN_OR_RETURN(layer->k, loader.Linear(prefix + "k"));
  ASSIGN_OR_RETURN(layer->v, loader.Linear(prefix + "v"));
  ASSIGN_OR_RETURN(layer->attention, ops.PrepareAttention(spec));
  return absl::OkStatus();
}

// The same of a layer with latents. An offset is a constant that belongs to every key or value, as
// the projection's bias does. kAbsorbed leaves both out of the keys, which shifts all scores of a
// query alike, so its exact sinks must lack them, too.
absl::Status LoadLatentCache(Loader& loader, const std::string& prefix, const LatentLayer& factors,
                             AttentionSpec spec, Ops& ops, LayerWeights* layer) {
  ASSIGN_OR_RETURN(layer->k, loader.Prepare(factors.k_down, Negative(ToFloats(factors.k_mean))));
  ASSIGN_OR_RETURN(layer->v, loader.Prepare(factors.v_down, Negative(ToFloats(factors.v_mean))));
  const std::vector<float> k_up = ToFloats(factors.k_up), v_up = ToFloats(factors.v_up);
  const std::vector<float> k_offset = ToFloats(factors.k_offset);
  const std::vector<float> k_bias = Sum(loader.OptionalVector(prefix + "k.bias"), k_offset);
  const std::vector<float> v_bias =
      Sum(loader.OptionalVector(prefix + "v.bias"), ToFloats(factors.v_offset));
  const bool absorbed = spec.rope == nullptr;
  spec.path = absorbed ? AttentionPath::kAbsorbed : AttentionPath::kReconstruct;
  spec.k_up = k_up.data();
  spec.v_up = v_up.data();
  spec.k_bias = absorbed ? nullptr : DataOrNull(k_bias);
  spec.v_bias = DataOrNull(v_bias);
  const std::vector<float> k_norm = loader.OptionalVector(prefix + "k_norm.weight");
  spec.k_norm = DataOrNull(k_norm);
  if (spec.cache.sinks > 0) {
    ASSIGN_OR_RETURN(layer->sink_k, loader.Linear(prefix + "k"));
    ASSIGN_OR_RETURN(layer->sink_v, loader.Linear(prefix + "v"));
    if (absorbed) {
      ASSIGN_OR_RETURN(layer->sink_k.bias, loader.OnDevice(Negative(k_offset)));
    }
  }
  ASSIGN_OR_RETURN(layer->attention, ops.PrepareAttention(spec));
  return absl::OkStatus();
}

absl::StatusOr<LayerWeights> LoadLayer(Loader& loader, int l, const ModelFacts& facts,
                                       const CacheLayer& cache, const Latents* latents, Ops& ops) {
  const ModelConfig& config = facts.config;
  const std::string prefix = absl::StrCat("layers.", l, ".");
  LayerWeights layer;
  ASSIGN_OR_RETURN(layer.attention_norm, loader.Norm(prefix + "attention_norm"));
  ASSIGN_OR_RETURN(layer.mlp_norm, loader.Norm(prefix + "mlp_norm"));
  ASSIGN_OR_RETURN(layer.q, loader.Linear(prefix + "q"));
  ASSIGN_OR_RETURN(layer.o, loader.Linear(prefix + "o"));
  if (config.qk_norm) {
    ASSIGN_OR_RETURN(layer.q_norm, loader.Norm(prefix + "q_norm"));
    ASSIGN_OR_RETURN(layer.k_norm, loader.Norm(prefix + "k_norm"));
  }
  if (config.activation == ActivationKind::kSiluGated) {
    ASSIGN_OR_RETURN(layer.gate, loader.Linear(prefix + "gate"));
  }
  ASSIGN_OR_RETURN(layer.up, loader.Linear(prefix + "up"));
  ASSIGN_OR_RETURN(layer.down, loader.Linear(prefix + "down"));
  const AttentionSpec spec{.path = AttentionPath::kFull,
                           .num_heads = config.num_heads,
                           .num_kv_heads = config.num_kv_heads,
                           .head_dim = config.head_dim,
                           .softmax_scale = facts.softmax_scale,
                           .cache = cache,
                           .rope = facts.rope,
                           .window = config.sliding_window,
                           .alibi_slopes = DataOrNull(facts.alibi_slopes),
                           .k_norm_epsilon = config.norm_epsilon};
  if (latents == nullptr) {
    RETURN_IF_ERROR(LoadFullCache(loader, prefix, spec, ops, &layer));
  } else {
    RETURN_IF_ERROR(LoadLatentCache(loader, prefix, latents->layers[l], spec, ops, &layer));
  }
  return layer;
}

}  // namespace

std::vector<CacheLayer> CacheLayersOf(const ModelConfig& config, const Latents* latents,
                                      Codec full_codec) {
  std::vector<CacheLayer> layers;
  layers.reserve(config.num_layers);
  for (int l = 0; l < config.num_layers; ++l) {
    layers.push_back(latents != nullptr
                         ? latents->layers[l].cache
                         : FullCacheLayer(config.num_kv_heads, config.head_dim, full_codec));
  }
  return layers;
}

absl::StatusOr<ModelWeights> LoadWeights(const Checkpoint& checkpoint, const WeightOptions& options,
                                         Ops& ops) {
  RETURN_IF_ERROR(CheckMemory(checkpoint, ops));
  const ModelConfig& config = checkpoint.config();
  const std::vector<CacheLayer> cache_layers =
      CacheLayersOf(config, options.latents, options.full_codec);
  Loader loader(checkpoint, ops);
  ModelWeights model;
  ASSIGN_OR_RETURN(model.token_embedding, loader.Table("token_embedding"));
  if (config.embedding_norm) {
    ASSIGN_OR_RETURN(model.embedding_norm, loader.Norm("embedding_norm"));
  }
  ModelFacts facts{.config = config,
                   .softmax_scale = 1.0f / std::sqrt(static_cast<float>(config.head_dim))};
  switch (config.position) {
    case PositionKind::kRope: {
      const RopeFrequencies frequencies = ComputeRopeFrequencies(config.rope, options.max_context);
      facts.softmax_scale *= frequencies.score_factor;
      model.rope = std::make_unique<RopeTable>(BuildRopeTable(frequencies, options.max_positions));
      facts.rope = model.rope.get();
      break;
    }
    case PositionKind::kLearned: {
      ASSIGN_OR_RETURN(model.position_embedding, loader.Table("position_embedding"));
      break;
    }
    case PositionKind::kAlibi:
      facts.alibi_slopes = AlibiSlopes(config.num_heads, config.alibi_bias_max);
      break;
  }
  for (int l = 0; l < config.num_layers; ++l) {
    ASSIGN_OR_RETURN(LayerWeights layer,
                     LoadLayer(loader, l, facts, cache_layers[l], options.latents, ops));
    model.layers.push_back(std::move(layer));
  }

  ASSIGN_OR_RETURN(model.final_norm, loader.Norm("final_norm"));
  ASSIGN_OR_RETURN(const TensorView head,
                   loader.Require(config.tied_embeddings ? "token_embedding" : "lm_head"));
  ASSIGN_OR_RETURN(model.lm_head, loader.Model(head, {}));
  model.bytes = loader.bytes();
  return model;
}

}  // namespace latentd
