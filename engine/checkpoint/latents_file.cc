#include "engine/checkpoint/latents_file.h"

#include <bit>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/hash128.h"
#include "base/message.h"
#include "base/status_macros.h"
#include "engine/checkpoint/json.h"
#include "engine/checkpoint/safetensors_file.h"
#include "engine/checkpoint/safetensors_writer.h"

namespace latentd {
namespace {

using Json = nlohmann::json;

constexpr int kVersion = 3;
constexpr const char* kMetadataKey = "latentd";
constexpr int kMaxSegments = 64;
constexpr int kMaxSegmentDims = 1 << 16;

struct Factor {
  const char* name;
  TensorView LatentLayer::*view;
};
constexpr Factor kFactors[] = {
    {"k_down", &LatentLayer::k_down},
    {"k_up", &LatentLayer::k_up},
    {"v_down", &LatentLayer::v_down},
    {"v_up", &LatentLayer::v_up},
};
// A plane has both or neither.
constexpr Factor kMeans[][2] = {
    {{"k_mean", &LatentLayer::k_mean}, {"k_offset", &LatentLayer::k_offset}},
    {{"v_mean", &LatentLayer::v_mean}, {"v_offset", &LatentLayer::v_offset}},
};

std::string FactorName(size_t layer, const char* factor) {
  return Message("layers.", layer, ".", factor);
}

Json PlaneToJson(const CachePlane& plane) {
  Json segments = Json::array();
  for (const Segment& segment : plane.segments) {
    segments.push_back(Json::array({segment.dims, Info(segment.codec).name}));
  }
  return {{"latent_heads", plane.latent_heads}, {"segments", segments}};
}

absl::StatusOr<CachePlane> PlaneFromJson(const Json& layer, const char* key,
                                         const std::string& name, int num_kv_heads) {
  const auto error = [&](const auto&... parts) {
    return absl::InvalidArgumentError(Message(name, ".", key, ": ", parts...));
  };
  if (!layer.is_object() || !HasField(layer, key)) return error("is missing");
  const Json& json = layer[key];
  CachePlane plane{.order = *key == 'k' ? TileOrder::kDimMajor : TileOrder::kTokenMajor};
  RETURN_IF_ERROR(ReadField(json, "latent_heads", Message(name, ".", key), plane.latent_heads));
  if (plane.latent_heads < 1 || num_kv_heads % plane.latent_heads != 0) {
    return error("latent_heads is ", plane.latent_heads, ", it must divide the ", num_kv_heads,
                 " KV heads of the model");
  }
  if (!HasField(json, "segments") || !json["segments"].is_array()) return error("has no segments");
  const Json& segments = json["segments"];
  if (segments.empty() || segments.size() > kMaxSegments) {
    return error("has ", segments.size(), " segments, 1 to ", kMaxSegments, " are allowed");
  }
  for (const Json& segment : segments) {
    if (!segment.is_array() || segment.size() != 2 || !segment[1].is_string()) {
      return error("a segment must be [dims, codec]");
    }
    const std::optional<int64_t> dims = AsCount(segment[0]);
    if (!dims.has_value() || *dims < 1 || *dims > kMaxSegmentDims || *dims % kTileDims != 0) {
      return error("a segment has ", segment[0].dump(), " dims, it must have a multiple of ",
                   kTileDims, " up to ", kMaxSegmentDims);
    }
    const std::string& codec_name = segment[1].get_ref<const std::string&>();
    const std::optional<Codec> codec = ParseCodec(codec_name);
    if (!codec.has_value()) return error("a segment has the unknown codec \"", codec_name, "\"");
    plane.segments.push_back({.dims = static_cast<int>(*dims), .codec = *codec});
  }
  return plane;
}

// The shape that a factor has for its plane and the model.
std::vector<int64_t> FactorShape(const Factor& factor, const LatentLayer& layer,
                                 const ModelConfig& config) {
  const CachePlane& plane = *factor.name == 'k' ? layer.cache.k : layer.cache.v;
  const bool is_down = factor.view == &LatentLayer::k_down || factor.view == &LatentLayer::v_down;
  if (is_down) return {int64_t{plane.latent_heads} * plane.dims(), config.hidden_dim};
  return {config.kv_dim(), plane.dims()};
}

std::vector<int64_t> MeanShape(const Factor& mean, const LatentLayer& layer,
                               const ModelConfig& config) {
  const bool is_latent = mean.view == &LatentLayer::k_mean || mean.view == &LatentLayer::v_mean;
  if (!is_latent) return {1, config.kv_dim()};
  const CachePlane& plane = *mean.name == 'k' ? layer.cache.k : layer.cache.v;
  return {1, int64_t{plane.latent_heads} * plane.dims()};
}

// The place of the first value whose magnitude, as a word without its sign, is above `largest`, or
// -1. Infinities and NaN are above every number.
template <typename Word>
int64_t FirstAbove(const TensorView& tensor, Word largest) {
  const auto* words = reinterpret_cast<const Word*>(tensor.data);
  constexpr Word kMagnitude = static_cast<Word>(~Word{0}) >> 1;
  const int64_t count = tensor.rows * tensor.cols;
  for (int64_t i = 0; i < count; ++i) {
    if ((words[i] & kMagnitude) > largest) return i;
  }
  return -1;
}

// Every number must fit 16 bits, as the pages' scales and 16-bit latents must: a larger one, or
// NaN, would spoil all tokens.
absl::Status CheckValues(const TensorView& tensor, const std::string& name) {
  constexpr float kLargest = 65504.0f;
  const int64_t at = tensor.dtype == DType::kF16
                         ? FirstAbove<uint16_t>(tensor, FloatToHalf(kLargest))
                         : FirstAbove<uint32_t>(tensor, std::bit_cast<uint32_t>(kLargest));
  if (at < 0) return absl::OkStatus();
  std::vector<float> row(tensor.cols);
  DequantizeRow(tensor, at / tensor.cols, absl::MakeSpan(row));
  return absl::InvalidArgumentError(Message(name, ": value ", at % tensor.cols, " of row ",
                                            at / tensor.cols, " is ", row[at % tensor.cols],
                                            ", it must be between ", -kLargest, " and ", kLargest));
}

absl::StatusOr<TensorView> FindFactor(const SafetensorsFile& file, const std::string& path,
                                      const std::string& name, const std::vector<int64_t>& shape) {
  const auto it = file.tensors.find(name);
  if (it == file.tensors.end()) {
    return absl::InvalidArgumentError(Message(path, ": the tensor ", name, " is missing"));
  }
  const StoredTensor& stored = it->second;
  if (stored.dtype != DType::kF32 && stored.dtype != DType::kF16) {
    return absl::InvalidArgumentError(
        Message(path, ": tensor ", name, " has type ", stored.type, ", it must be F16 or F32"));
  }
  if (stored.shape != shape) {
    return absl::InvalidArgumentError(Message(path, ": tensor ", name, " has shape ",
                                              ShapeText(stored.shape), ", the layout wants ",
                                              ShapeText(shape)));
  }
  const size_t alignment = stored.dtype == DType::kF32 ? 4 : 2;
  if (reinterpret_cast<uintptr_t>(stored.data.data()) % alignment != 0) {
    return absl::InvalidArgumentError(
        Message(path, ": tensor ", name, " does not begin at a multiple of ", alignment, " bytes"));
  }
  const TensorView tensor{
      .dtype = *stored.dtype, .rows = shape[0], .cols = shape[1], .data = stored.data.data()};
  RETURN_IF_ERROR(CheckValues(tensor, Message(path, ": ", name)));
  return tensor;
}

absl::Status ReadShingles(const Json& facts, const std::string& where,
                          std::vector<uint32_t>& shingles) {
  const auto field = facts.find("shingles");
  if (field == facts.end() || !field->is_array()) {
    return absl::InvalidArgumentError(Message(where, ": \"shingles\" is no array of numbers"));
  }
  for (const Json& hash : *field) {
    const std::optional<int64_t> value = AsCount(hash);
    if (!value.has_value() || *value > UINT32_MAX) {
      return absl::InvalidArgumentError(
          Message(where, ": the shingle ", hash.dump(), " is no 32-bit number"));
    }
    if (!shingles.empty() && *value <= shingles.back()) {
      return absl::InvalidArgumentError(Message(where, ": the shingle ", *value, " follows ",
                                                shingles.back(), ", they must ascend"));
    }
    shingles.push_back(static_cast<uint32_t>(*value));
  }
  return absl::OkStatus();
}

std::string ChecksumOf(const Latents& latents) {
  Hash128 hash;
  const auto add = [&](const TensorView& view) {
    if (view.data != nullptr) hash.Add(view.data, view.bytes());
  };
  for (const LatentLayer& layer : latents.layers) {
    for (const Factor& factor : kFactors) add(layer.*factor.view);
    for (const auto& means : kMeans) {
      for (const Factor& mean : means) add(layer.*mean.view);
    }
  }
  return hash.Hex();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Latents>> OpenLatents(const std::string& path,
                                                     const Checkpoint& base) {
  ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(path));
  const auto text = file.metadata.find(kMetadataKey);
  if (text == file.metadata.end()) {
    return absl::InvalidArgumentError(
        Message(path, ": this is no latents file: it has no metadata \"", kMetadataKey, "\""));
  }
  const std::string where = Message(path, ": metadata \"", kMetadataKey, "\"");
  ASSIGN_OR_RETURN(const Json facts, ParseJson(text->second, where));
  int version = 0;
  RETURN_IF_ERROR(ReadField(facts, "version", where, version));
  if (version != kVersion) {
    return absl::InvalidArgumentError(Message(path, ": latents of version ", version,
                                              " are not supported, version ", kVersion,
                                              " is: make them again with latent-compress"));
  }
  std::string fingerprint;
  RETURN_IF_ERROR(ReadField(facts, "fingerprint", where, fingerprint));
  const std::string base_fingerprint = Fingerprint(base);
  if (fingerprint != base_fingerprint) {
    return absl::FailedPreconditionError(
        Message(path, ": these latents were made for another model, with fingerprint ", fingerprint,
                "; the model \"", base.config().name, "\" has ", base_fingerprint));
  }

  auto latents = std::make_unique<Latents>();
  std::string checksum;
  RETURN_IF_ERROR(ReadField(facts, "checksum", where, checksum));
  RETURN_IF_ERROR(ReadField(facts, "method", where, latents->method));
  RETURN_IF_ERROR(ReadShingles(facts, where, latents->shingles));
  const ModelConfig& config = base.config();
  CacheLayer cache;
  for (const char* field : {"sinks", "own_page"}) {
    if (HasField(facts, field)) continue;
    return absl::InvalidArgumentError(Message(where, " has no \"", field, "\""));
  }
  RETURN_IF_ERROR(ReadField(facts, "sinks", where, cache.sinks));
  RETURN_IF_ERROR(ReadField(facts, "own_page", where, cache.own_page));
  if (cache.sinks < 0 || cache.sinks > kBlockTokens) {
    return absl::InvalidArgumentError(
        Message(where, ": sinks is ", cache.sinks, ", allowed: 0 to ", kBlockTokens));
  }
  cache.sink_dims = cache.sinks > 0 ? config.kv_dim() : 0;
  cache.key_norms = config.qk_norm ? config.num_kv_heads : 0;
  const size_t num_layers = config.num_layers;
  const auto layers = facts.find("layers");
  if (layers == facts.end() || !layers->is_array() || layers->size() != num_layers) {
    return absl::InvalidArgumentError(Message(where, " describes ",
                                              layers != facts.end() ? layers->size() : 0,
                                              " layers, the model has ", num_layers));
  }
  size_t num_tensors = 0;
  for (size_t l = 0; l < num_layers; ++l) {
    const std::string layer_name = Message(path, ": layers.", l);
    LatentLayer& layer = latents->layers.emplace_back(LatentLayer{.cache = cache});
    ASSIGN_OR_RETURN(layer.cache.k,
                     PlaneFromJson((*layers)[l], "k", layer_name, config.num_kv_heads));
    ASSIGN_OR_RETURN(layer.cache.v,
                     PlaneFromJson((*layers)[l], "v", layer_name, config.num_kv_heads));
    for (const Factor& factor : kFactors) {
      ASSIGN_OR_RETURN(layer.*factor.view, FindFactor(file, path, FactorName(l, factor.name),
                                                      FactorShape(factor, layer, config)));
      ++num_tensors;
    }
    for (const auto& means : kMeans) {
      if (!file.tensors.contains(FactorName(l, means[0].name)) &&
          !file.tensors.contains(FactorName(l, means[1].name))) {
        continue;
      }
      for (const Factor& mean : means) {
        ASSIGN_OR_RETURN(layer.*mean.view, FindFactor(file, path, FactorName(l, mean.name),
                                                      MeanShape(mean, layer, config)));
        ++num_tensors;
      }
    }
  }
  if (file.tensors.size() != num_tensors) {
    return absl::InvalidArgumentError(Message(path, ": the file has ", file.tensors.size(),
                                              " tensors, its ", num_layers, " layers have ",
                                              num_tensors, " that are known"));
  }
  if (const std::string found = ChecksumOf(*latents); found != checksum) {
    return absl::DataLossError(Message(path,
                                       ": the file is damaged: its numbers have the checksum ",
                                       found, ", it says ", checksum));
  }
  latents->storage = std::move(file.storage);
  return latents;
}

absl::Status WriteLatents(const std::string& path, const std::string& fingerprint,
                          const Latents& latents) {
  Json layers = Json::array();
  std::vector<NamedTensor> tensors;
  for (size_t l = 0; l < latents.layers.size(); ++l) {
    const LatentLayer& layer = latents.layers[l];
    layers.push_back({{"k", PlaneToJson(layer.cache.k)}, {"v", PlaneToJson(layer.cache.v)}});
    const auto add = [&](const Factor& factor) {
      if ((layer.*factor.view).data == nullptr) return;
      tensors.push_back({.name = FactorName(l, factor.name), .view = layer.*factor.view});
    };
    for (const Factor& factor : kFactors) add(factor);
    for (const auto& means : kMeans) {
      for (const Factor& mean : means) add(mean);
    }
  }
  const CacheLayer cache = latents.layers.empty() ? CacheLayer() : latents.layers[0].cache;
  const Json facts = {{"version", kVersion},
                      {"fingerprint", fingerprint},
                      {"checksum", ChecksumOf(latents)},
                      {"method", latents.method},
                      {"sinks", cache.sinks},
                      {"own_page", cache.own_page},
                      {"shingles", latents.shingles},
                      {"layers", layers}};
  return WriteSafetensors(
      path, tensors, {{kMetadataKey, facts.dump(-1, ' ', false, Json::error_handler_t::replace)}});
}

}  // namespace latentd
