#pragma once

#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/compressor/bit_allocation.h"
#include "engine/compressor/plane_factors.h"
#include "engine/compressor/statistics.h"

namespace latentd {

// Our own method: a basis weighted by the loss from both sides, bits given to blocks of dims by one
// budget over all layers and planes, exact sinks, means taken out. The README derives it.
struct MixedOptions {
  double ratio = 5.3;                     // uncompressed over stored bytes per token, at least
  std::optional<double> bytes_per_token;  // of the whole cache, at most; instead of the ratio
  BitWidths widths;
  std::optional<double> k_share;  // of the bytes, that K takes; else what costs least
  int heads_per_group = 0;
  int sinks = 4;
  bool own_page = true;
};

// INVALID_ARGUMENT names the flag, its value and what is allowed for this model: also a budget
// below the smallest or above the largest cache that the widths allow.
absl::Status Validate(const MixedOptions& options, const ModelConfig& config);

// What the whole cache may take, all scales counted. It may come out smaller: bits are given to
// whole blocks of dims, and where more of them gain nothing they are not spent.
double AllowedBytesPerToken(const MixedOptions& options, const ModelConfig& config);

// For people, of a cache that came out with that ratio of uncompressed over stored bytes per token:
// "mixed, ratio 5.3, 8/4/2 bits in blocks of 32, groups of all KV heads, ...".
std::string Describe(const MixedOptions& options, const ModelConfig& config, double ratio);

// How much of the mean of F's diagonal goes into F, F + shrinkage (tr F / n I - F), when `tokens`
// fed an F of `dims` rows: the noise of F falls with tokens per row. 12.8 rows per token, chosen on
// held-out text: 5 % at 256 tokens a row, 25 % at 51; never above one half.
double Shrinkage(int64_t tokens, int dims);

// What an error of codes costs beside a cut one of the same size. F takes the errors of all tokens
// for independent. Those of codes nearly are, and average out in attention's sums over tokens; what
// is cut is missing from every token alike. With an own page in 16 bits, moreover, codes reach the
// readers on later pages alone. Chosen with SmolLM2-135M on WikiText-2's validation text, where .5
// to 1 and .2 to .3 were tried.
double CodeShare(bool own_page);

// The factors of every layer, from statistics (with `fisher`) of `tokens` tokens. `options` are
// valid for the model.
absl::StatusOr<std::vector<LayerFactors>> CompressMixed(
    const Checkpoint& checkpoint, const std::vector<LayerStatistics>& statistics, int64_t tokens,
    const MixedOptions& options, const Progress& progress);

}  // namespace latentd
