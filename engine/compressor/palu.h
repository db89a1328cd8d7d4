#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/compressor/matrix.h"
#include "engine/compressor/plane_factors.h"
#include "engine/compressor/statistics.h"

namespace latentd {

// How the paper's method shares the kept dims among the K and V projections of all layers.
enum class RankAllocation : uint8_t {
  kUniform,    // alike
  kFisherSum,  // in proportion to the summed squared gradient (arXiv 2407.21118, section 3.3)
  kFisherRms,  // in proportion to the mean root-mean-square gradient (the paper's code)
};

// Palu (arXiv 2407.21118) as it is: low rank and one bit width.
struct PaluOptions {
  double rate = 0.5;  // share of dims cut, in [0, 1)
  // 32 and 16 (floating point), 8 (symmetric grid), 4, 3, 2 (min-max, as the paper)
  int bits = 4;
  RankAllocation allocation = RankAllocation::kUniform;
  std::optional<double> k_dims;  // share of the kept dims that K gets; else as the allocation says
  // KV heads that share a latent: 1 is the paper's M-LRD, all J-LRD, between G-LRD
  int heads_per_group = 0;
  bool hadamard = true;
  int sinks = 0;
};

// "uniform", "fisher-sum", "fisher-rms"; INVALID_ARGUMENT names --allocate otherwise.
absl::StatusOr<RankAllocation> ParseRankAllocation(const std::string& text);

// INVALID_ARGUMENT names the flag, its value and what is allowed for this model.
absl::Status Validate(const PaluOptions& options, const ModelConfig& config);

// For people: "palu, rate 0.5, uniform, 4 bits, groups of all KV heads".
std::string Describe(const PaluOptions& options, const ModelConfig& config);

// The best factors of rank `latent_dim` for keys or values y of second moment `moment` = E[y y^T]:
// they minimise E|y - up down y|^2. SVD-LLM's truncation-aware whitening (arXiv 2403.07378, 3.1),
// which Palu uses (arXiv 2407.21118, 3.2), without a root of the inputs' moment: with the
// eigenvectors U of E[y y^T], the answer is U_r U_r^T. Each side takes the square root of the
// singular values. `energy` gets all eigenvalues, falling.
absl::StatusOr<Factors> Factorize(const Matrix& moment, int latent_dim,
                                  std::vector<double>* energy);

// The factors of every layer. `options` are valid for the model; Fisher allocations need the
// statistics' weight_fisher.
absl::StatusOr<std::vector<LayerFactors>> CompressPalu(
    const Checkpoint& checkpoint, const std::vector<LayerStatistics>& statistics,
    const PaluOptions& options, const Progress& progress);

}  // namespace latentd
