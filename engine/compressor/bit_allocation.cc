#include "engine/compressor/bit_allocation.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numbers>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/random.h"

namespace latentd {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Of one of BitWidths::widths.
Codec GridOf(int bits) {
  const std::optional<Codec> codec = GridCodec(bits);
  LATENTD_CHECK(codec.has_value());
  return *codec;
}

int64_t PlaneBytes(int latent_heads, int dims, int bits) {
  return CachePlane{.latent_heads = latent_heads,
                    .segments = {{.dims = dims, .codec = GridOf(bits)}}}
      .plane_bytes();
}

// CodeError, measured once per width and length.
class CodeErrors {
 public:
  double Of(int bits, int dims) {
    const auto [it, is_new] = known_.try_emplace({bits, dims}, 0.0);
    if (is_new) it->second = CodeError(GridOf(bits), dims);
    return it->second;
  }

 private:
  std::map<std::pair<int, int>, double> known_;
};

// Width w of the list holds the blocks [ends[w - 1], ends[w]); those from ends[last] on are cut.
using Recipe = std::vector<int>;

struct Choice {
  int64_t bytes = 0;  // of the plane in a block
  double cost = 0;
  Recipe recipe;
};

// What the recipes of one plane cost, and which of them are worth it.
class PlaneChoices {
 public:
  PlaneChoices(const std::vector<DimEnergies>& heads, const BitWidths& widths, double code_share,
               CodeErrors* errors)
      : heads_(heads), widths_(widths), code_share_(code_share) {
    const int dims = static_cast<int>(heads[0].weight.size());
    for (int begin = 0; begin < dims; begin += widths.block_dims) begins_.push_back(begin);
    begins_.push_back(dims);
    FillTables(errors);
    Recipe recipe(widths.widths.size());
    Try(0, 0, &recipe, 0, 0);
    KeepFrontier();
  }

  // By rising bytes and falling cost; no other recipe has both less.
  const std::vector<Choice>& frontier() const { return frontier_; }

  PlaneAllocation Allocation(const Choice& choice) const {
    PlaneAllocation out{.predicted_kl = choice.cost};
    int begin = 0;
    for (size_t w = 0; w < widths_.widths.size(); ++w) {
      const int end = choice.recipe[w];
      if (end > begin) {
        out.segments.push_back(
            {.dims = begins_[end] - begins_[begin], .codec = GridOf(widths_.widths[w])});
      }
      begin = end;
    }
    return out;
  }

 private:
  int num_blocks() const { return static_cast<int>(begins_.size()) - 1; }
  size_t Index(size_t w, int begin, int end) const {
    return (w * begins_.size() + begin) * begins_.size() + end;
  }

  void FillTables(CodeErrors* errors) {
    const size_t ends = begins_.size();
    cost_.resize(widths_.widths.size() * ends * ends);
    bytes_.resize(cost_.size());
    cut_.resize(ends);
    for (const DimEnergies& head : heads_) AddCosts(head, errors);
    for (size_t w = 0; w < widths_.widths.size(); ++w) {
      for (int b = 0; b < num_blocks(); ++b) {
        for (int e = b + 1; e <= num_blocks(); ++e) {
          bytes_[Index(w, b, e)] = PlaneBytes(static_cast<int>(heads_.size()),
                                              begins_[e] - begins_[b], widths_.widths[w]);
        }
      }
    }
  }

  void AddCosts(const DimEnergies& head, CodeErrors* errors) {
    std::vector<double> weight(begins_.size()), variance(begins_.size());  // before a block
    for (int b = 0; b < num_blocks(); ++b) {
      weight[b + 1] = weight[b];
      variance[b + 1] = variance[b];
      for (int i = begins_[b]; i < begins_[b + 1]; ++i) {
        weight[b + 1] += head.weight[i];
        variance[b + 1] += head.variance[i];
        for (int cut = 0; cut <= b; ++cut) cut_[cut] += head.weight[i] * head.variance[i] / 2;
      }
    }
    for (size_t w = 0; w < widths_.widths.size(); ++w) {
      for (int b = 0; b < num_blocks(); ++b) {
        for (int e = b + 1; e <= num_blocks(); ++e) {
          const int dims = begins_[e] - begins_[b];
          cost_[Index(w, b, e)] += code_share_ * errors->Of(widths_.widths[w], dims) *
                                   (weight[e] - weight[b]) * (variance[e] - variance[b]) / dims / 2;
        }
      }
    }
  }

  // Every recipe whose widths before `w` are given.
  void Try(size_t w, int begin, Recipe* recipe, int64_t bytes, double cost) {
    if (w == widths_.widths.size()) {
      if (begin == 0) return;
      const size_t slot = bytes / kBlockTokens;
      if (slot >= best_.size()) best_.resize(slot + 1, {.cost = kInfinity});
      cost += cut_[begin];
      if (cost < best_[slot].cost) best_[slot] = {.bytes = bytes, .cost = cost, .recipe = *recipe};
      return;
    }
    for (int end = begin; end <= num_blocks(); ++end) {
      (*recipe)[w] = end;
      const size_t i = Index(w, begin, end);
      Try(w + 1, end, recipe, bytes + bytes_[i], cost + cost_[i]);
    }
  }

  void KeepFrontier() {
    double least = kInfinity;
    for (const Choice& choice : best_) {
      if (choice.cost >= least) continue;
      least = choice.cost;
      frontier_.push_back(choice);
    }
    best_.clear();
  }

  const std::vector<DimEnergies>& heads_;
  const BitWidths& widths_;
  const double code_share_;
  std::vector<int> begins_;     // of the blocks of dims, and the end of the last
  std::vector<double> cost_;    // [width][begin][end], in blocks of dims
  std::vector<int64_t> bytes_;  // likewise
  std::vector<double> cut_;     // of all blocks from the one on
  std::vector<Choice> best_;    // by bytes
  std::vector<Choice> frontier_;
};

// One move along the lower convex hull of a plane's frontier.
struct HullStep {
  size_t plane;
  int to;  // index in the frontier
  int64_t bytes;
  double gain_per_byte;
};

void AppendHullSteps(size_t plane, const std::vector<Choice>& frontier,
                     std::vector<HullStep>* steps) {
  for (int at = 0, next = 0; at + 1 < static_cast<int>(frontier.size()); at = next) {
    HullStep best{.plane = plane, .gain_per_byte = -1};
    for (int to = at + 1; to < static_cast<int>(frontier.size()); ++to) {
      const int64_t bytes = frontier[to].bytes - frontier[at].bytes;
      const double gain = (frontier[at].cost - frontier[to].cost) / static_cast<double>(bytes);
      if (gain >= best.gain_per_byte) {
        best.to = to;
        best.bytes = bytes;
        best.gain_per_byte = gain;
      }
    }
    next = best.to;
    steps->push_back(best);
  }
}

// The least total cost among choices near `chosen` whose bytes together exceed those of `chosen` by
// at most `spare`: a knapsack over the planes, in units of the planes' common grain. `reach` bounds
// how far a plane, and the sum at any time, moves.
void SpendSpare(const std::vector<PlaneChoices>& planes, int64_t spare, int64_t reach,
                std::vector<int>* chosen) {
  int64_t grain = 0;
  for (const PlaneChoices& plane : planes) {
    for (const Choice& choice : plane.frontier()) grain = std::gcd(grain, choice.bytes);
  }
  const int range = static_cast<int>(reach / grain);
  const int width = 2 * range + 1;  // deviations -range .. range
  std::vector<double> least(width, kInfinity);
  least[range] = 0;
  std::vector<std::vector<int>> taken(planes.size(), std::vector<int>(width, -1));
  for (size_t p = 0; p < planes.size(); ++p) {
    const std::vector<Choice>& frontier = planes[p].frontier();
    std::vector<double> next(width, kInfinity);
    for (int c = 0; c < static_cast<int>(frontier.size()); ++c) {
      const int64_t move = (frontier[c].bytes - frontier[(*chosen)[p]].bytes) / grain;
      if (std::abs(move) > range) continue;
      const int shift = static_cast<int>(move);
      for (int at = std::max(0, -shift); at < std::min(width, width - shift); ++at) {
        const double cost = least[at] + frontier[c].cost;
        if (cost < next[at + shift]) {
          next[at + shift] = cost;
          taken[p][at + shift] = c;
        }
      }
    }
    least = std::move(next);
  }
  const int last = range + static_cast<int>(std::min(spare, reach) / grain);
  int at =
      static_cast<int>(std::min_element(least.begin(), least.begin() + last + 1) - least.begin());
  for (size_t p = planes.size(); p-- > 0;) {
    const std::vector<Choice>& frontier = planes[p].frontier();
    const int c = taken[p][at];
    at -= static_cast<int>((frontier[c].bytes - frontier[(*chosen)[p]].bytes) / grain);
    (*chosen)[p] = c;
  }
}

}  // namespace

double CodeError(Codec codec, int dims) {
  const int rows = (1 << 15) / dims + 1;
  std::vector<float> row(dims);
  std::vector<uint8_t> codes(dims);
  double error = 0, energy = 0;
  for (int r = 0; r < rows; ++r) {
    for (int i = 0; i < dims; ++i) {  // Box and Muller 1958
      const uint64_t counter = 2 * (static_cast<uint64_t>(r) * dims + i);
      row[i] = std::sqrt(-2 * std::log(1 - RandomUniform(0, counter))) *
               std::cos(2 * std::numbers::pi_v<float> * RandomUniform(0, counter + 1));
    }
    const CodeScale scale = EncodeRow(codec, row, absl::MakeSpan(codes));
    const float step = DecodeScale(codec, scale), offset = DecodeOffset(codec, scale);
    for (int i = 0; i < dims; ++i) {
      const double e = row[i] - (step * codes[i] + offset);
      error += e * e;
      energy += static_cast<double>(row[i]) * row[i];
    }
  }
  return error / energy;
}

PlaneBounds BoundsOf(const BitWidths& widths, int latent_heads, int dims) {
  return {
      .smallest = PlaneBytes(latent_heads, std::min(dims, widths.block_dims), widths.widths.back()),
      .largest = PlaneBytes(latent_heads, dims, widths.widths.front())};
}

std::vector<PlaneAllocation> AllocateBits(const std::vector<std::vector<DimEnergies>>& planes,
                                          const BitWidths& widths, double code_share,
                                          int64_t block_bytes) {
  std::vector<PlaneChoices> choices;
  choices.reserve(planes.size());
  CodeErrors errors;
  std::vector<HullStep> steps;
  int64_t spare = block_bytes, reach = 64 * kBlockTokens;
  for (size_t p = 0; p < planes.size(); ++p) {
    const std::vector<Choice>& frontier =
        choices.emplace_back(planes[p], widths, code_share, &errors).frontier();
    spare -= frontier.front().bytes;
    AppendHullSteps(p, frontier, &steps);
  }
  LATENTD_CHECK(spare >= 0);
  std::stable_sort(steps.begin(), steps.end(), [](const HullStep& a, const HullStep& b) {
    return a.gain_per_byte > b.gain_per_byte;
  });
  std::vector<int> chosen(planes.size(), 0);
  for (const HullStep& step : steps) {
    reach = std::max(reach, step.bytes);
    if (step.bytes > spare) break;  // the multiplier lies at this step
    spare -= step.bytes;
    chosen[step.plane] = step.to;
  }
  SpendSpare(choices, spare, reach, &chosen);
  std::vector<PlaneAllocation> out;
  for (size_t p = 0; p < planes.size(); ++p) {
    out.push_back(choices[p].Allocation(choices[p].frontier()[chosen[p]]));
  }
  return out;
}

}  // namespace latentd
