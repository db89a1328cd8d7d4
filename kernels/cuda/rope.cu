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
  float* x;
};

// blockIdx.x: the row.
__global__ void __launch_bounds__(kThreads) RotatePairs(const __grid_constant__ RopeArguments p) {
  LetNextKernelBegin();
  const unsigned i = blockIdx.y * kThreads + threadIdx.x, pairs = p.pairs, head = i / pairs;
  if (head >= static_cast<unsigned>(p.heads)) return WaitForKernelsBefore();
  const unsigned pair = i - head * pairs;
  const int64_t at = int64_t{p.positions[blockIdx.x]} * pairs + pair;
  const float cos = p.cos[at], sin = p.sin[at];
  float* x = p.x + (int64_t{blockIdx.x} * p.heads + head) * p.head_dim + pair;
  WaitForKernelsBefore();
  const float a = __ldcg(x), b = __ldcg(x + pairs);
  x[0] = a * cos - b * sin;
  x[pairs] = b * cos + a * sin;
}

}  // namespace

void CudaRope(CudaDevice& device, StepMemory& step, const RopeParams& p,
              const DeviceRopeTable& table) {
  const auto rows = static_cast<unsigned>(p.positions.size());
  const int count = p.heads * p.table->pairs;  // of a row
  if (rows == 0 || count == 0) return;
  const auto blocks = static_cast<unsigned>((count + kThreads - 1) / kThreads);
  Launch(device, "rope", RotatePairs,
         {.blocks = {rows, blocks}, .threads = kThreads, .early = true},
         {.positions = step.Find(p.positions),
          .cos = table.cos,
          .sin = table.sin,
          .pairs = p.table->pairs,
          .heads = p.heads,
          .head_dim = p.head_dim,
          .x = p.x});
}

}  // namespace latentd
