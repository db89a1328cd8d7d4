#pragma once

#include <cstdint>

#include "kernels/params.h"

namespace latentd {

// Draws one token from logits[vocab], as kernels/reference/sampling.h defines it; here in fp32 with
// double sums, and without a full sort: candidates are cut to what top_k or top_p can reach before
// they are ordered. A function of the arguments alone.
SampleResult CpuSampleRow(const float* logits, int64_t vocab, const SampleRow& row);

// Natural log of softmax(logits [vocab]) at `token`: fp32 with double sums in index order.
float CpuLogProbability(const float* logits, int64_t vocab, int32_t token);

}  // namespace latentd
