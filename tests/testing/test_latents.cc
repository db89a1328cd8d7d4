#include "tests/testing/test_latents.h"

#include <deque>
#include <string>

#include "base/check.h"
#include "base/message.h"
#include "engine/model/hadamard.h"
#include "tests/testing/random_values.h"

namespace latentd {
namespace {

// Owns what the views of a Latents point to.
struct Storage {
  std::deque<std::vector<float>> tensors;

  TensorView Keep(std::vector<float> values, int64_t cols) {
    tensors.push_back(std::move(values));
    return {.dtype = DType::kF32,
            .rows = static_cast<int64_t>(tensors.back().size()) / cols,
            .cols = cols,
            .data = reinterpret_cast<const std::byte*>(tensors.back().data())};
  }
};

struct PlaneViews {
  TensorView down, up, mean, offset;
};

PlaneViews MakePlane(const TensorView& weight, const CachePlane& plane, const ModelConfig& config,
                     int heads_per_group, bool means, uint64_t seed, Storage* storage) {
  const int width = heads_per_group * config.head_dim, dims = plane.dims();
  const int64_t hidden = weight.cols;
  LATENTD_CHECK(dims <= width);
  const std::vector<double> rotation = HadamardRotation(width);
  std::vector<float> down, up, row(hidden);
  for (int g = 0; g < plane.latent_heads; ++g) {
    std::vector<float> group(dims * hidden, 0.0f);
    for (int i = 0; i < width; ++i) {
      DequantizeRow(weight, g * width + i, absl::MakeSpan(row));
      for (int d = 0; d < dims; ++d) {
        const auto factor = static_cast<float>(rotation[d * width + i]);
        for (int64_t c = 0; c < hidden; ++c) group[d * hidden + c] += factor * row[c];
        up.push_back(factor);
      }
    }
    down.insert(down.end(), group.begin(), group.end());
  }
  PlaneViews views;
  if (means) {
    std::vector<float> mean = GaussianValues(plane.latent_heads * dims, seed, 0.3f), offset;
    for (int r = 0; r < config.kv_dim(); ++r) {
      float sum = 0;
      for (int d = 0; d < dims; ++d) sum += up[r * dims + d] * mean[r / width * dims + d];
      offset.push_back(sum);
    }
    const auto mean_size = static_cast<int64_t>(mean.size());
    views.mean = storage->Keep(std::move(mean), mean_size);
    views.offset = storage->Keep(std::move(offset), config.kv_dim());
  }
  views.down = storage->Keep(std::move(down), hidden);
  views.up = storage->Keep(std::move(up), dims);
  return views;
}

}  // namespace

std::unique_ptr<Latents> MakeTestLatents(const Checkpoint& checkpoint, const TestLatents& options) {
  const ModelConfig& config = checkpoint.config();
  const int groups = config.num_kv_heads / options.heads_per_group;
  auto storage = std::make_shared<Storage>();
  auto latents = std::make_unique<Latents>();
  latents->method = "test";
  for (int l = 0; l < config.num_layers; ++l) {
    LatentLayer layer{
        .cache = {
            .k = {.latent_heads = groups, .segments = options.k},
            .v = {.latent_heads = groups, .segments = options.v, .order = TileOrder::kTokenMajor},
            .sinks = options.sinks,
            .sink_dims = options.sinks > 0 ? config.kv_dim() : 0,
            .own_page = options.own_page,
            .key_norms = config.qk_norm ? config.num_kv_heads : 0}};
    const auto make = [&](const char* projection, const CachePlane& plane, uint64_t seed) {
      const auto weight = checkpoint.Find(Message("layers.", l, ".", projection, ".weight"));
      LATENTD_CHECK(weight.has_value());
      return MakePlane(*weight, plane, config, options.heads_per_group, options.means, seed,
                       storage.get());
    };
    const PlaneViews k = make("k", layer.cache.k, 2 * l + 1),
                     v = make("v", layer.cache.v, 2 * l + 2);
    layer.k_down = k.down, layer.k_up = k.up, layer.k_mean = k.mean, layer.k_offset = k.offset;
    layer.v_down = v.down, layer.v_up = v.up, layer.v_mean = v.mean, layer.v_offset = v.offset;
    latents->layers.push_back(layer);
  }
  latents->storage = std::move(storage);
  return latents;
}

}  // namespace latentd
