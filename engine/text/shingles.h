#pragma once

#include <cstdint>
#include <vector>

#include "absl/types/span.h"

namespace latentd {

// Runs of tokens that two texts can have in common (Broder 1997: shingles). Thirteen tokens are the
// field's usual measure of a test text that was seen before (Brown et al. 2020, appendix C).
constexpr int kShingleTokens = 13;

// 32-bit hashes of the runs of kShingleTokens tokens inside each window, of one run in eight:
// whether a run is kept depends on its tokens alone, so two texts keep the same ones. Ascending,
// each once.
std::vector<uint32_t> ShinglesOf(absl::Span<const std::vector<int32_t>> windows);

// How many of a text's distinct shingles are in a set. By chance alone, `total` of them meet `n`
// others total * n / 2^32 times.
struct ShingleOverlap {
  int64_t shared = 0;
  int64_t total = 0;

  // More than the licences and headings that unrelated texts have in common: over one in a
  // thousand, and more than four.
  bool same_text() const { return shared > 4 && shared * 1000 > total; }
};

// `shingles` is ascending, as ShinglesOf makes it, from the same tokenizer's ids.
ShingleOverlap CountShared(absl::Span<const std::vector<int32_t>> windows,
                           absl::Span<const uint32_t> shingles);

}  // namespace latentd
