#include "kernels/cpu/rope.h"

#include "base/check.h"

namespace latentd {
namespace {

// Plain loops: the compiler makes vectors of them, and they take a thousandth of a step.
void RotateHead(const float* cos, const float* sin, int pairs, float* x) {
  float* y = x + pairs;
  for (int j = 0; j < pairs; ++j) {
    const float a = x[j], b = y[j];
    x[j] = a * cos[j] - b * sin[j];
    y[j] = b * cos[j] + a * sin[j];
  }
}

}  // namespace

void CpuRope(ThreadPool& pool, const RopeParams& p) {
  const RopeTable& table = *p.table;
  const int64_t row_values = static_cast<int64_t>(p.heads) * p.head_dim;
  LATENTD_CHECK(2 * table.pairs <= p.head_dim);
  constexpr int64_t kRowsPerChunk = 8;  // fewer are not worth a second thread
  const auto rows = static_cast<int64_t>(p.positions.size());
  pool.ParallelFor(rows, kRowsPerChunk, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      LATENTD_CHECK(p.positions[r] >= 0 && p.positions[r] < table.max_positions);
      const int64_t angles = static_cast<int64_t>(p.positions[r]) * table.pairs;
      for (int h = 0; h < p.heads; ++h) {
        RotateHead(table.cos.data() + angles, table.sin.data() + angles, table.pairs,
                   p.x + r * row_values + static_cast<int64_t>(h) * p.head_dim);
      }
    }
  });
}

}  // namespace latentd
