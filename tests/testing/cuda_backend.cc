#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/cuda/cuda_ops.h"
#include "tests/testing/tested_backend.h"

namespace latentd {
namespace {

float RoundedToBFloat16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof(bits));
  bits = (bits + 0x7fff + (bits >> 16 & 1)) & 0xffff0000;  // to nearest even
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

bool HasFewBits(const std::vector<Segment>& segments) {
  return std::ranges::all_of(segments, [](const Segment& s) {
    return s.codec == Codec::kInt4 || s.codec == Codec::kInt3 || s.codec == Codec::kInt2;
  });
}
bool AreSymmetric(const std::vector<Segment>& segments) {
  return std::ranges::all_of(
      segments, [](const Segment& s) { return HasFewBits({s}) || s.codec == Codec::kInt8; });
}
bool BeginAtMultiplesOf32(const std::vector<Segment>& segments) {
  int dims = 0;
  return std::ranges::all_of(segments, [&dims](const Segment& segment) {
    return std::exchange(dims, dims + segment.dims) % 32 == 0;
  });
}
// Whether decode attention may rebuild keys with k_up in int8: about a percent of a key.
bool HasInt8Factors(const AttentionShape& shape) {
  return shape.path == AttentionPath::kReconstruct && BeginAtMultiplesOf32(shape.k) &&
         HasFewBits(shape.k) && AreSymmetric(shape.v) && !shape.biases;
}

}  // namespace

const char* TestedBackendName() { return "cuda"; }
absl::StatusOr<std::unique_ptr<Ops>> CreateTestedOps(int) {
  return CreateCudaOps(0, {.batch_invariant = true});
}
absl::StatusOr<std::unique_ptr<Ops>> CreateFastestOps(int) { return CreateCudaOps(0); }
std::vector<int> ThreadCounts() { return {1}; }

void ForEachKindOfCode(const std::function<void()>& body) { body(); }

std::vector<PlanKind> PlanKinds() {
  return {{"batch-invariant",
           [](Ops& ops, const AttentionSpec& spec) { return ops.PrepareAttention(spec); }},
          {"with kernels for decode steps", [](Ops& ops, const AttentionSpec& spec) {
             return PrepareCudaAttention(ops, spec, /*batch_invariant=*/false);
           }}};
}
bool MayRefuseAttention() { return true; }

// Products are of fp16 numbers: queries, factors, rebuilt keys, decoded values, weights.
double AttentionTolerance(const AttentionShape& shape) {
  return HasInt8Factors(shape) ? 1e-2 : 2e-3;
}
double ScoreTolerance(const AttentionShape& shape, bool decode) {
  return decode && HasInt8Factors(shape) ? 0.25 : 0.02;
}

// All products are of bf16 numbers.
std::vector<double> SeenInput(DType, const std::vector<float>& in) {
  std::vector<double> seen;
  seen.reserve(in.size());
  for (const float value : in) seen.push_back(RoundedToBFloat16(value));
  return seen;
}
double SeenWeight(float value) { return RoundedToBFloat16(value); }
int64_t ColumnStep() { return 8; }
// Untrained models, whose logits reach 10, add up what bf16 loses: .245 at most was seen. That a
// trained one loses nothing, perplexities show (docs/results/cuda.md).
float LogitTolerance() { return 0.3f; }

}  // namespace latentd
