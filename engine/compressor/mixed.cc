#include "engine/compressor/mixed.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "base/status_macros.h"

namespace latentd {
namespace {

constexpr double kRowsPerToken = 12.8;
constexpr double kMaxShrinkage = 0.5;
// Energies and variances below this share of the largest energy count as none.
constexpr double kNoEnergy = 1e-12;

// The basis of one latent head. With A = F^(1/2) and the eigenvectors U and eigenvalues s^2 of
// A E[y y^T] A, the dims z = U^T A y have the energies s^2 and y = A^-1 U z, and the loss of an
// error in z is its plain square: (y - y')^T F (y - y') = |z - z'|^2. The codes hold z about its
// mean, with the standard deviation t <= s. The latent is h = t^(-1/2) z, so a dim has the variance
// t and an error in it the weight t: of all scales of the dims, those under which coding n dims
// together costs least, D (sum t)^2 / 2n (Cauchy and Schwarz).
struct Basis {
  Factors factors;  // of all dims
  DimEnergies dims;
  std::vector<double> energy;  // s^2
};

// F^(1/2) (or its inverse) of F shrunk towards its mean diagonal.
struct Roots {
  Matrix root, inverse;
};

absl::StatusOr<Roots> RootsOf(const Matrix& fisher, double shrinkage) {
  ASSIGN_OR_RETURN(const Eigen eigen, SymmetricEigen(fisher));
  const int n = fisher.rows;
  double mean = 0;
  for (const double value : eigen.values) mean += value / n;
  if (!(mean > 0)) mean = 1;  // nothing depends on this plane: any basis will do
  Matrix scaled = eigen.vectors, inverse = eigen.vectors;
  for (int c = 0; c < n; ++c) {
    const double value = (1 - shrinkage) * eigen.values[c] + shrinkage * mean;
    const double root = std::sqrt(std::max(value, kNoEnergy * mean));
    for (int r = 0; r < n; ++r) {
      scaled.at(r, c) *= root;
      inverse.at(r, c) /= root;
    }
  }
  return Roots{.root = Multiply(scaled, Transpose::kNo, eigen.vectors, Transpose::kYes),
               .inverse = Multiply(inverse, Transpose::kNo, eigen.vectors, Transpose::kYes)};
}

Matrix ColumnOf(const std::vector<double>& values, int begin, int count) {
  Matrix out(count, 1);
  std::copy_n(values.begin() + begin, count, out.values.begin());
  return out;
}

absl::StatusOr<Basis> BasisOf(const PlaneStatistics& statistics, int begin, int dims,
                              double shrinkage) {
  ASSIGN_OR_RETURN(const Roots roots,
                   RootsOf(DiagonalBlock(statistics.fisher, begin, dims), shrinkage));
  const Matrix moment = DiagonalBlock(statistics.second_moment, begin, dims);
  ASSIGN_OR_RETURN(Eigen eigen, SymmetricEigen(Multiply(Multiply(roots.root, moment), roots.root)));
  Basis out{
      .factors = {.down = Multiply(eigen.vectors, Transpose::kYes, roots.root, Transpose::kNo),
                  .up = Multiply(roots.inverse, eigen.vectors)},
      .energy = eigen.values};
  const Matrix mean = Multiply(out.factors.down, ColumnOf(statistics.mean, begin, dims));
  const double floor = kNoEnergy * std::max(eigen.values[0], 0.0);
  for (int i = 0; i < dims; ++i) {
    out.energy[i] = std::max(0.0, eigen.values[i]);
    const double variance = out.energy[i] - mean.at(i, 0) * mean.at(i, 0);
    const double t = variance > floor ? std::sqrt(variance) : 0;
    out.dims.weight.push_back(t);
    out.dims.variance.push_back(t);
    if (t <= 0) continue;  // a dim without variance keeps its scale
    for (int c = 0; c < dims; ++c) {
      out.factors.down.at(i, c) /= std::sqrt(t);
      out.factors.up.at(c, i) *= std::sqrt(t);
    }
  }
  return out;
}

// The first dims of the basis, as many as the segments hold, rotated inside each segment. Each
// segment is scaled to a mean variance of 1, which its codes do not see and which keeps latents and
// factors inside fp16.
Factors LatentFactors(const Basis& basis, const std::vector<Segment>& segments) {
  int live = 0;
  for (const Segment& segment : segments) live += segment.dims;
  const int width = basis.factors.down.cols;
  Factors out{.down = Matrix(live, width), .up = Matrix(width, live)};
  int begin = 0;
  for (const Segment& segment : segments) {
    double variance = 0;
    for (int i = 0; i < segment.dims; ++i) {
      variance += basis.dims.variance[begin + i] / segment.dims;
    }
    const double scale = variance > 0 ? 1 / std::sqrt(variance) : 1;
    for (int i = begin; i < begin + segment.dims; ++i) {
      for (int c = 0; c < width; ++c) {
        out.down.at(i, c) = basis.factors.down.at(i, c) * scale;
        out.up.at(c, i) = basis.factors.up.at(c, i) / scale;
      }
    }
    begin += segment.dims;
  }
  RotateSegments(segments, &out);
  return out;
}

// A K or V projection of one layer.
struct PlaneOfModel {
  int layer;
  const char* projection;  // "k" or "v"
  TileOrder order;
  const PlaneStatistics* statistics;
  std::vector<Basis> heads;
};

absl::StatusOr<PlaneFactors> FactorsOf(const Checkpoint& checkpoint, const PlaneOfModel& plane,
                                       const PlaneAllocation& allocation) {
  const int heads = static_cast<int>(plane.heads.size());
  const int width = checkpoint.config().kv_dim() / heads;
  PlaneFactors out{
      .plane = {.latent_heads = heads, .segments = allocation.segments, .order = plane.order},
      .energy = std::vector<double>(width),
      .predicted_kl = allocation.predicted_kl};
  for (int head = 0; head < heads; ++head) {
    const Basis& basis = plane.heads[head];
    const Factors factors = LatentFactors(basis, allocation.segments);
    ASSIGN_OR_RETURN(const Matrix weight, ProjectionRows(checkpoint, plane.layer, plane.projection,
                                                         head * width, width));
    AppendFactors(factors, weight, &out);
    const Matrix mean =
        Multiply(factors.down, ColumnOf(plane.statistics->mean, head * width, width));
    out.mean.insert(out.mean.end(), mean.values.begin(), mean.values.end());
    for (int i = 0; i < width; ++i) out.energy[i] += basis.energy[i];
  }
  out.offset.assign(plane.statistics->mean.begin(), plane.statistics->mean.end());
  return out;
}

using Energies = std::vector<std::vector<DimEnergies>>;

// What it takes beside the planes: the norms of rebuilt keys.
double NormBytesPerToken(const ModelConfig& config) {
  return config.qk_norm ? 2.0 * config.num_layers * config.num_kv_heads : 0;
}

int64_t BlockBytes(double bytes_per_token) {
  return static_cast<int64_t>(bytes_per_token * kBlockTokens + 1e-6);
}

// Of K's planes, then of V's.
std::vector<PlaneAllocation> Allocate(const Energies& k, const Energies& v, double bytes_per_token,
                                      const MixedOptions& options) {
  const auto allocate = [&](const Energies& planes, double share) {
    return AllocateBits(planes, options.widths, CodeShare(options.own_page),
                        BlockBytes(bytes_per_token * share));
  };
  if (options.k_share.has_value()) {
    std::vector<PlaneAllocation> out = allocate(k, *options.k_share);
    std::vector<PlaneAllocation> rest = allocate(v, 1 - *options.k_share);
    std::move(rest.begin(), rest.end(), std::back_inserter(out));
    return out;
  }
  Energies all = k;
  all.insert(all.end(), v.begin(), v.end());
  return allocate(all, 1);
}

// Whether the budget lies between the smallest and the largest cache.
absl::Status CheckBudget(const MixedOptions& options, const ModelConfig& config) {
  const PlaneBounds bounds = BoundsOf(options.widths, config.num_kv_heads / options.heads_per_group,
                                      options.heads_per_group * config.head_dim);
  const double full = static_cast<double>(config.full_bytes_per_token());
  const double planes = static_cast<double>(config.num_layers) / kBlockTokens;
  const double norms = NormBytesPerToken(config);
  const double bytes = AllowedBytesPerToken(options, config);
  const double smallest = 2 * planes * static_cast<double>(bounds.smallest) + norms;
  const double largest = 2 * planes * static_cast<double>(bounds.largest) + norms;
  if (!(bytes >= smallest && bytes <= largest)) {
    return absl::InvalidArgumentError(absl::StrCat(
        options.bytes_per_token.has_value()
            ? absl::StrCat("--bytes-per-token is ", bytes)
            : absl::StrCat("--ratio is ", options.ratio, ", ", bytes, " bytes per token"),
        "; these widths and blocks allow ", smallest, " to ", largest, " bytes, a ratio of ",
        full / smallest, " to ", full / largest));
  }
  if (!options.k_share.has_value()) return absl::OkStatus();
  const double least = (smallest - norms) / 2, most = (largest - norms) / 2;
  for (const double share : {*options.k_share, 1 - *options.k_share}) {
    const double plane = (bytes - norms) * share;
    if (plane >= least && plane <= most) continue;
    return absl::InvalidArgumentError(
        absl::StrCat("--k-share is ", *options.k_share, ", which leaves ", plane,
                     " bytes per token for keys or values; these widths and blocks allow ", least,
                     " to ", most));
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Validate(const MixedOptions& options, const ModelConfig& config) {
  const auto wrong = [](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(parts...));
  };
  if (!(options.ratio > 0)) return wrong("--ratio is ", options.ratio, ", it must be above 0");
  if (options.bytes_per_token.has_value() && !(*options.bytes_per_token > 0)) {
    return wrong("--bytes-per-token is ", *options.bytes_per_token, ", it must be above 0");
  }
  if (options.k_share.has_value() && !(*options.k_share > 0 && *options.k_share < 1)) {
    return wrong("--k-share is ", *options.k_share, ", it must lie between 0 and 1");
  }
  const std::vector<int>& widths = options.widths.widths;
  for (size_t w = 0; w < widths.size(); ++w) {
    const bool known = widths[w] == 8 || widths[w] == 4 || widths[w] == 3 || widths[w] == 2;
    if (!known || (w > 0 && widths[w] >= widths[w - 1])) {
      return wrong("--bit-widths is ", absl::StrJoin(widths, ","),
                   ", allowed: some of 8,4,3,2 in this order");
    }
  }
  if (widths.empty()) return wrong("--bit-widths is empty, allowed: some of 8,4,3,2");
  const int block = options.widths.block_dims;
  if (block < kTileDims || block % kTileDims != 0) {
    return wrong("--block is ", block, ", it must be a multiple of ", kTileDims);
  }
  if (options.sinks < 0 || options.sinks > kBlockTokens) {
    return wrong("--sinks is ", options.sinks, ", allowed: 0 to ", kBlockTokens);
  }
  const int width = options.heads_per_group * config.head_dim;
  if (width % kTileDims != 0) {
    return wrong("--group ", options.heads_per_group, " has ", width,
                 " dims, they must be a multiple of ", kTileDims);
  }
  return CheckBudget(options, config);
}

double AllowedBytesPerToken(const MixedOptions& options, const ModelConfig& config) {
  return options.bytes_per_token.value_or(static_cast<double>(config.full_bytes_per_token()) /
                                          options.ratio);
}

std::string Describe(const MixedOptions& options, const ModelConfig& config, double ratio) {
  return absl::StrCat(
      absl::StrFormat("mixed, ratio %.3g, ", ratio), absl::StrJoin(options.widths.widths, "/"),
      " bits in blocks of ", options.widths.block_dims, ", ",
      options.k_share.has_value() ? absl::StrCat("K share ", *options.k_share, ", ") : "",
      DescribeGroups(options.heads_per_group, config.num_kv_heads), ", ", options.sinks,
      " exact sinks", options.own_page ? ", own page in 16 bits" : "");
}

double CodeShare(bool own_page) { return own_page ? 0.3 : 0.6; }

double Shrinkage(int64_t tokens, int dims) {
  return std::min(kMaxShrinkage, kRowsPerToken * dims / static_cast<double>(tokens));
}

absl::StatusOr<std::vector<LayerFactors>> CompressMixed(
    const Checkpoint& checkpoint, const std::vector<LayerStatistics>& statistics, int64_t tokens,
    const MixedOptions& options, const Progress& progress) {
  const ModelConfig& config = checkpoint.config();
  const int width = options.heads_per_group * config.head_dim;
  std::vector<PlaneOfModel> k, v;
  Energies k_dims, v_dims;
  for (int l = 0; l < config.num_layers; ++l) {
    k.push_back({l, "k", TileOrder::kDimMajor, &statistics[l].k, {}});
    v.push_back({l, "v", TileOrder::kTokenMajor, &statistics[l].v, {}});
    for (auto [plane, dims] : {std::pair(&k.back(), &k_dims), std::pair(&v.back(), &v_dims)}) {
      dims->emplace_back();
      for (int begin = 0; begin < config.kv_dim(); begin += width) {
        ASSIGN_OR_RETURN(Basis basis,
                         BasisOf(*plane->statistics, begin, width, Shrinkage(tokens, width)));
        dims->back().push_back(basis.dims);
        plane->heads.push_back(std::move(basis));
      }
    }
    RETURN_IF_ERROR(progress((l + 0.5) / config.num_layers / 2));
  }

  const std::vector<PlaneAllocation> allocation = Allocate(
      k_dims, v_dims, AllowedBytesPerToken(options, config) - NormBytesPerToken(config), options);
  std::vector<LayerFactors> out;
  for (int l = 0; l < config.num_layers; ++l) {
    LayerFactors layer{.sinks = options.sinks, .own_page = options.own_page};
    ASSIGN_OR_RETURN(layer.k, FactorsOf(checkpoint, k[l], allocation[l]));
    ASSIGN_OR_RETURN(layer.v, FactorsOf(checkpoint, v[l], allocation[config.num_layers + l]));
    out.push_back(std::move(layer));
    RETURN_IF_ERROR(progress(0.5 + (l + 1.0) / config.num_layers / 2));
  }
  return out;
}

}  // namespace latentd
