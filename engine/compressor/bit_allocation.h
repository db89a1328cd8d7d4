#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cache_layout.h"

namespace latentd {

// The latent dims of one latent head, in the order of its basis: cuts take its end, and widths
// never rise along it. An error e in the dims costs sum_i weight_i E[e_i^2] / 2 nats per predicted
// token.
struct DimEnergies {
  std::vector<double> weight;
  std::vector<double> variance;  // about the mean that is taken out of the codes
};

// What the allocation decided for one plane, and what it predicts.
struct PlaneAllocation {
  std::vector<Segment> segments;  // of every latent head; widths never increase
  double predicted_kl = 0;        // nats per predicted token
};

struct BitWidths {
  std::vector<int> widths = {8, 4, 2};  // from the set 8, 4, 3, 2, descending
  int block_dims = 32;  // dims that share a width, a multiple of 16; the last block may be shorter
};

// Bytes in a block of the smallest and the largest plane that the widths allow: one block of dims
// of the least width, and all dims of the greatest.
struct PlaneBounds {
  int64_t smallest, largest;
};
PlaneBounds BoundsOf(const BitWidths& widths, int latent_heads, int dims);

// D(codec, dims): the mean squared error of a code over the variance of what it codes, for rows of
// `dims` independent Gaussian values, which is what a Hadamard rotation makes of a segment.
// Measured with the codec itself.
double CodeError(Codec codec, int dims);

// Widths for every dim of every plane of a cache, so that a block takes at most `block_bytes` (and
// as little less as the planes' grain allows) and the predicted loss, the sum of all costs, is
// least. Of each plane all recipes are tried that give every block of dims one of the widths or cut
// it, never a larger width to a later block; the first block is never cut. One Lagrange multiplier
// over the planes finds the choice, and an exact knapsack over the recipes near it spends what the
// multiplier leaves.
//
// The loss of one latent head: a dim that is cut costs weight_i variance_i / 2. In a segment of n
// dims, every rotated dim has the mean variance v = sum_i variance_i / n, and its code an error of
// D v; the errors are uncorrelated, so turned back, dim i again has the error D v, whatever its own
// variance. So the segment costs sum_i weight_i D v / 2 = D (sum weight) (sum variance) / 2n.
//
// `code_share`, in (0, 1], is what an error of codes costs beside a cut one of the same size.
//
// planes[p] holds the dims of each latent head of plane p; the heads of a plane share a recipe.
// `block_bytes` is at least the sum of the planes' smallest.
std::vector<PlaneAllocation> AllocateBits(const std::vector<std::vector<DimEnergies>>& planes,
                                          const BitWidths& widths, double code_share,
                                          int64_t block_bytes);

}  // namespace latentd
