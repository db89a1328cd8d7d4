#include "engine/text/shingles.h"

#include <algorithm>

#include "base/random.h"

namespace latentd {
namespace {

// Of the 64 bits of a run's hash the upper ones decide whether it is kept, the lower 32 are kept.
constexpr int kOneIn = 8;

}  // namespace

std::vector<uint32_t> ShinglesOf(absl::Span<const std::vector<int32_t>> windows) {
  std::vector<uint32_t> shingles;
  for (const std::vector<int32_t>& window : windows) {
    for (size_t begin = 0; begin + kShingleTokens <= window.size(); ++begin) {
      uint64_t hash = 0;
      for (int i = 0; i < kShingleTokens; ++i) {
        hash = RandomBits(hash, static_cast<uint32_t>(window[begin + i]));
      }
      if ((hash >> 32) % kOneIn == 0) shingles.push_back(static_cast<uint32_t>(hash));
    }
  }
  std::sort(shingles.begin(), shingles.end());
  shingles.erase(std::unique(shingles.begin(), shingles.end()), shingles.end());
  return shingles;
}

ShingleOverlap CountShared(absl::Span<const std::vector<int32_t>> windows,
                           absl::Span<const uint32_t> shingles) {
  const std::vector<uint32_t> own = ShinglesOf(windows);
  ShingleOverlap overlap{.total = static_cast<int64_t>(own.size())};
  for (const uint32_t shingle : own) {
    overlap.shared += std::binary_search(shingles.begin(), shingles.end(), shingle) ? 1 : 0;
  }
  return overlap;
}

}  // namespace latentd
