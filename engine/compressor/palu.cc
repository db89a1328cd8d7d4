#include "engine/compressor/palu.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/check.h"
#include "base/status_macros.h"
#include "engine/compressor/rank_allocation.h"

namespace latentd {
namespace {

constexpr const char* kAllocationNames[] = {"uniform", "fisher-sum", "fisher-rms"};

std::optional<Codec> CodecOf(int bits) {
  switch (bits) {
    case 32:
      return Codec::kF32;
    case 16:
      return Codec::kF16;
    case 8:
      return Codec::kInt8;
    case 4:
      return Codec::kMinMax4;
    case 3:
      return Codec::kMinMax3;
    case 2:
      return Codec::kMinMax2;
    default:
      return std::nullopt;
  }
}

double Importance(const PlaneStatistics& plane, RankAllocation allocation) {
  switch (allocation) {
    case RankAllocation::kUniform:
      return 1;
    case RankAllocation::kFisherSum:
      return plane.weight_fisher_sum;
    case RankAllocation::kFisherRms:
      return plane.weight_fisher_rms;
  }
  return 1;
}

// The widest latent of a head group: whole tiles.
int FullRank(const PaluOptions& options, const ModelConfig& config) {
  return options.heads_per_group * config.head_dim / kTileDims * kTileDims;
}

// Dims of all K planes' and all V planes' latent heads together (of one head each).
struct KeptDims {
  double k, v;
};

KeptDims Kept(const PaluOptions& options, const ModelConfig& config) {
  const double plane = (1.0 - options.rate) * options.heads_per_group * config.head_dim;
  const double smallest = kTileDims, largest = FullRank(options, config);
  const double both = 2 * std::clamp(plane, smallest, largest);
  const double k = options.k_dims.has_value() ? both * *options.k_dims : both / 2;
  return {.k = k * config.num_layers, .v = (both - k) * config.num_layers};
}

// Ranks of K of all layers, then of V.
std::vector<int> Ranks(const std::vector<LayerStatistics>& statistics, const PaluOptions& options,
                       const ModelConfig& config) {
  std::vector<double> k, v;
  for (const LayerStatistics& layer : statistics) {
    k.push_back(Importance(layer.k, options.allocation));
    v.push_back(Importance(layer.v, options.allocation));
  }
  const KeptDims kept = Kept(options, config);
  const int full = FullRank(options, config);
  if (options.k_dims.has_value()) {
    std::vector<int> ranks = AllocateRanks(k, full, kept.k);
    const std::vector<int> rest = AllocateRanks(v, full, kept.v);
    ranks.insert(ranks.end(), rest.begin(), rest.end());
    return ranks;
  }
  k.insert(k.end(), v.begin(), v.end());
  return AllocateRanks(k, full, kept.k + kept.v);
}

absl::StatusOr<PlaneFactors> FactorizePlane(const Checkpoint& checkpoint, int layer,
                                            const char* projection, TileOrder order,
                                            const Matrix& moment, int rank,
                                            const PaluOptions& options) {
  const ModelConfig& config = checkpoint.config();
  const int width = options.heads_per_group * config.head_dim;
  const std::optional<Codec> codec = CodecOf(options.bits);
  LATENTD_CHECK(codec.has_value());  // by Validate
  PlaneFactors out{.plane = {.latent_heads = config.num_kv_heads / options.heads_per_group,
                             .segments = {{.dims = rank, .codec = *codec}},
                             .order = order},
                   .dtype = options.bits == 32 ? DType::kF32 : DType::kF16,
                   .energy = std::vector<double>(width)};
  for (int head = 0; head < out.plane.latent_heads; ++head) {
    std::vector<double> energy;
    ASSIGN_OR_RETURN(Factors factors,
                     Factorize(DiagonalBlock(moment, head * width, width), rank, &energy));
    if (options.hadamard) RotateSegments(out.plane.segments, &factors);
    ASSIGN_OR_RETURN(const Matrix weight,
                     ProjectionRows(checkpoint, layer, projection, head * width, width));
    AppendFactors(factors, weight, &out);
    for (int i = 0; i < width; ++i) out.energy[i] += energy[i];
  }
  return out;
}

}  // namespace

absl::StatusOr<RankAllocation> ParseRankAllocation(const std::string& text) {
  for (int i = 0; i < 3; ++i) {
    if (text == kAllocationNames[i]) return static_cast<RankAllocation>(i);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--allocate is \"", text, "\", allowed: uniform, fisher-sum, fisher-rms"));
}

absl::Status Validate(const PaluOptions& options, const ModelConfig& config) {
  const auto wrong = [](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(parts...));
  };
  if (!(options.rate >= 0 && options.rate < 1)) {
    return wrong("--rate is ", options.rate, ", allowed: 0 (nothing cut) up to below 1");
  }
  if (!CodecOf(options.bits).has_value()) {
    return wrong("--bits is ", options.bits, ", allowed: 32, 16, 8, 4, 3, 2");
  }
  if (options.sinks < 0 || options.sinks > kBlockTokens) {
    return wrong("--sinks is ", options.sinks, ", allowed: 0 to ", kBlockTokens);
  }
  const int full = FullRank(options, config);
  if (full < kTileDims) {
    return wrong("--group ", options.heads_per_group, " has ",
                 options.heads_per_group * config.head_dim, " dims, a latent needs at least ",
                 kTileDims);
  }
  if (options.k_dims.has_value()) {
    const KeptDims kept = Kept(options, config);
    for (const double plane : {kept.k / config.num_layers, kept.v / config.num_layers}) {
      if (!(plane >= kTileDims && plane <= full)) {
        return wrong("--k-dims ", *options.k_dims, " gives a latent ", plane,
                     " dims, allowed: ", kTileDims, " to ", full);
      }
    }
  }
  return absl::OkStatus();
}

std::string Describe(const PaluOptions& options, const ModelConfig& config) {
  return absl::StrCat(
      "palu, rate ", options.rate, ", ", kAllocationNames[static_cast<int>(options.allocation)],
      ", ", options.k_dims.has_value() ? absl::StrCat("K dims ", *options.k_dims, ", ") : "",
      options.bits, " bits, ", DescribeGroups(options.heads_per_group, config.num_kv_heads),
      options.hadamard ? "" : ", no Hadamard",
      options.sinks > 0 ? absl::StrCat(", ", options.sinks, " exact sinks") : "");
}

absl::StatusOr<Factors> Factorize(const Matrix& moment, int latent_dim,
                                  std::vector<double>* energy) {
  ASSIGN_OR_RETURN(const Eigen eigen, SymmetricEigen(moment));
  *energy = eigen.values;
  for (double& value : *energy) value = std::max(0.0, value);
  // sigma = sqrt(eigenvalue) splits evenly: up takes sigma^(1/2), down sigma^(-1/2). Directions
  // without energy keep scale 1.
  const double floor = 1e-12 * std::max(eigen.values[0], 1e-300);
  Factors factors{.down = Matrix(latent_dim, moment.rows), .up = Matrix(moment.rows, latent_dim)};
  for (int i = 0; i < latent_dim; ++i) {
    const double root = eigen.values[i] > floor ? std::pow(eigen.values[i], 0.25) : 1.0;
    for (int r = 0; r < moment.rows; ++r) {
      factors.down.at(i, r) = eigen.vectors.at(r, i) / root;
      factors.up.at(r, i) = eigen.vectors.at(r, i) * root;
    }
  }
  return factors;
}

absl::StatusOr<std::vector<LayerFactors>> CompressPalu(
    const Checkpoint& checkpoint, const std::vector<LayerStatistics>& statistics,
    const PaluOptions& options, const Progress& progress) {
  const int layers = checkpoint.config().num_layers;
  const std::vector<int> ranks = Ranks(statistics, options, checkpoint.config());
  std::vector<LayerFactors> out;
  for (int l = 0; l < layers; ++l) {
    LayerFactors layer{.sinks = options.sinks};
    ASSIGN_OR_RETURN(layer.k, FactorizePlane(checkpoint, l, "k", TileOrder::kDimMajor,
                                             statistics[l].k.second_moment, ranks[l], options));
    ASSIGN_OR_RETURN(layer.v,
                     FactorizePlane(checkpoint, l, "v", TileOrder::kTokenMajor,
                                    statistics[l].v.second_moment, ranks[layers + l], options));
    out.push_back(std::move(layer));
    RETURN_IF_ERROR(progress((l + 1.0) / layers));
  }
  return out;
}

}  // namespace latentd
