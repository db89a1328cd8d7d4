#include "engine/model/dummy_latents.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "base/status_macros.h"
#include "engine/checkpoint/dummy_numbers.h"

namespace latentd {
namespace {

constexpr int kMostHeads = 4;  // of a group
constexpr int kSinks = 4;

struct Shares {
  double k = 0, v = 0;  // percent
};

absl::StatusOr<Shares> ParseShares(const std::string& text) {
  const std::vector<std::string> parts = absl::StrSplit(text, '/');
  const auto share = [&](size_t i, double* value) {
    return i < parts.size() && absl::SimpleAtod(parts[i], value) && *value > 0 && *value <= 100;
  };
  Shares shares;
  if (parts.size() == 2 && share(0, &shares.k) && share(1, &shares.v)) return shares;
  return absl::InvalidArgumentError(
      absl::StrCat("--dummy-latents is \"", text,
                   "\", but must be two percentages above 0 up to 100, of K and of V: 50/50"));
}

int HeadsOfGroup(int num_kv_heads) {
  for (int heads = kMostHeads; heads > 1; --heads) {
    if (num_kv_heads % heads == 0) return heads;
  }
  return num_kv_heads;
}

}  // namespace

absl::StatusOr<std::unique_ptr<Latents>> MakeDummyLatents(const ModelConfig& config,
                                                          const std::string& shares_text,
                                                          uint64_t seed) {
  ASSIGN_OR_RETURN(const Shares shares, ParseShares(shares_text));
  const int heads = HeadsOfGroup(config.num_kv_heads);
  const int groups = config.num_kv_heads / heads, width = heads * config.head_dim;
  const auto plane = [&](double percent, TileOrder order) {
    const double tiles = percent / 100 * width / kTileDims;
    return CachePlane{.latent_heads = groups,
                      .segments = {{.dims = std::max(1, static_cast<int>(tiles)) * kTileDims,
                                    .codec = Codec::kInt4}},
                      .order = order};
  };
  const CacheLayer cache{.k = plane(shares.k, TileOrder::kDimMajor),
                         .v = plane(shares.v, TileOrder::kTokenMajor),
                         .sinks = kSinks,
                         .sink_dims = config.kv_dim(),
                         .own_page = true,
                         .key_norms = config.qk_norm ? config.num_kv_heads : 0};
  const int64_t hidden = config.hidden_dim, most_dims = std::max(cache.k.dims(), cache.v.dims());
  absl::StatusOr<DummyNumbers> made = DummyNumbers::Create(
      std::max(groups * most_dims * hidden, config.kv_dim() * most_dims), seed);
  if (!made.ok()) {
    return absl::Status(made.status().code(), absl::StrCat("--dummy-latents is \"", shares_text,
                                                           "\": ", made.status().message()));
  }
  const auto numbers = std::make_shared<const DummyNumbers>(*std::move(made));
  auto latents = std::make_unique<Latents>();
  uint64_t name = 0;
  const auto down = [&](const CachePlane& of) {
    return numbers->Matrix(int64_t{of.latent_heads} * of.dims(), hidden, name++);
  };
  const auto up = [&](const CachePlane& of) {
    return numbers->Matrix(config.kv_dim(), of.dims(), name++);
  };
  for (int l = 0; l < config.num_layers; ++l) {
    latents->layers.push_back({.cache = cache,
                               .k_down = down(cache.k),
                               .k_up = up(cache.k),
                               .v_down = down(cache.v),
                               .v_up = up(cache.v)});
  }
  latents->method = absl::StrCat("dummy latents ", shares_text, ", 4 bits, groups of ", heads,
                                 " KV heads, ", kSinks, " exact sinks, own page in 16 bits");
  latents->storage = numbers;
  return latents;
}

}  // namespace latentd
