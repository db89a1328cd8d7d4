#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/plain_ops.h"

namespace latentd {
namespace {

constexpr int kThreads = 256;

struct RopeArguments {
  const int32_t* positions;  // [T]
  const float* cos;          // [max_positions, pairs]
  const float* sin;
  int pairs, heads, head_dim;
  int64_t count;  // T * heads * pairs
  float* x;
};

__global__ void __launch_bounds__(kThreads) RotatePairs(RopeArguments p) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= p.count) return;
  const int pair = static_cast<int>(i % p.pairs);
  const int64_t head = i / p.pairs;  // of all rows
  const int64_t at = int64_t{p.positions[head / p.heads]} * p.pairs + pair;
  const float cos = p.cos[at], sin = p.sin[at];
  float* x = p.x + head * p.head_dim + pair;
  const float a = x[0], b = x[p.pairs];
  x[0] = a * cos - b * sin;
  x[p.pairs] = b * cos + a * sin;
}

}  // namespace

void CudaRope(CudaDevice& device, StepMemory& step, const RopeParams& p,
              const DeviceRopeTable& table) {
  const int64_t count = static_cast<int64_t>(p.positions.size()) * p.heads * p.table->pairs;
  if (count == 0) return;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  Launch(device, "rope", RotatePairs, {blocks, kThreads},
         {.positions = step.Find(p.positions),
          .cos = table.cos,
          .sin = table.sin,
          .pairs = p.table->pairs,
          .heads = p.heads,
          .head_dim = p.head_dim,
          .count = count,
          .x = p.x});
}

}  // namespace latentd
