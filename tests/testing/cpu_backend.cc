#include <algorithm>

#include "kernels/cpu/activation_block.h"
#include "kernels/cpu/attention_plan.h"
#include "tests/kernels/cpu/vector_targets.h"
#include "tests/testing/tested_backend.h"

namespace latentd {
namespace {

bool HasScale(const std::vector<Segment>& segments) {
  return std::ranges::any_of(segments,
                             [](const Segment& s) { return Info(s.codec).scale_bytes > 0; });
}
bool HasFewBits(const std::vector<Segment>& segments) {
  return std::ranges::any_of(segments, [](const Segment& s) { return Info(s.codec).bits <= 4; });
}

}  // namespace

const char* TestedBackendName() { return "cpu"; }
absl::StatusOr<std::unique_ptr<Ops>> CreateTestedOps(int threads) { return CreateCpuOps(threads); }
absl::StatusOr<std::unique_ptr<Ops>> CreateFastestOps(int threads) { return CreateCpuOps(threads); }
std::vector<int> ThreadCounts() { return {1, 2, 3}; }

void ForEachKindOfCode(const std::function<void()>& body) { ForEachVectorTarget(body); }

std::vector<PlanKind> PlanKinds() {
  return {{"as the machine has it",
           [](Ops& ops, const AttentionSpec& spec) { return ops.PrepareAttention(spec); }},
          {"without AMX", [](Ops&, const AttentionSpec& spec) {
             return std::make_unique<CpuAttentionPlan>(spec, /*use_amx=*/false);
           }}};
}
bool MayRefuseAttention() { return false; }

// k_up in int8, and codes of several segments in int8 together, are about a percent of a key,
// beside the ten percent of its 4-bit codes. Elsewhere products of integers have two int8 parts.
double AttentionTolerance(const AttentionShape& shape) {
  if (shape.path == AttentionPath::kReconstruct && HasFewBits(shape.k)) return 1e-2;
  return HasScale(shape.k) || HasScale(shape.v) ? 1e-4 : 1e-5;
}

// Products of integers with two int8 parts are off by 2^-16 of the largest weight or factor; the
// least of the weights are a hundredth of it.
double ScoreTolerance(const AttentionShape& shape, bool /*decode*/) {
  return shape.path == AttentionPath::kReconstruct && HasFewBits(shape.k) ? 0.25 : 0.002;
}

// Quantised weights are multiplied with int8 activations.
std::vector<double> SeenInput(DType dtype, const std::vector<float>& in) {
  std::vector<double> seen(in.begin(), in.end());
  if (!IsQuantized(dtype)) return seen;
  std::vector<ActivationBlock> blocks(in.size() / 32);
  QuantizeActivations(in.data(), static_cast<int64_t>(in.size()), blocks.data());
  for (size_t i = 0; i < in.size(); ++i) {
    seen[i] = static_cast<double>(blocks[i / 32].scale) * blocks[i / 32].codes[i % 32];
  }
  return seen;
}
double SeenWeight(float value) { return value; }
int64_t ColumnStep() { return 1; }
float LogitTolerance() { return 0.0f; }

}  // namespace latentd
