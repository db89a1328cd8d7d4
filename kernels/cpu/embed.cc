#include "kernels/cpu/embed.h"

#include <vector>

#include "base/check.h"

namespace latentd {

void CpuEmbed(ThreadPool& pool, const EmbedParams& p) {
  const int64_t hidden = p.table.cols;
  constexpr int64_t kRowsPerChunk = 8;  // fewer are not worth a second thread
  const auto rows = static_cast<int64_t>(p.token_ids.size());
  pool.ParallelFor(rows, kRowsPerChunk, [&](int64_t begin, int64_t end, int) {
    std::vector<float> position(p.position_table == nullptr ? 0 : hidden);
    for (int64_t r = begin; r < end; ++r) {
      LATENTD_CHECK(p.token_ids[r] >= 0 && p.token_ids[r] < p.table.rows);
      float* out = p.out + r * hidden;
      DequantizeRow(p.table, p.token_ids[r], {out, static_cast<size_t>(hidden)});
      if (p.position_table == nullptr) continue;
      LATENTD_CHECK(p.positions[r] >= 0 && p.positions[r] < p.position_table->rows);
      DequantizeRow(*p.position_table, p.positions[r], absl::MakeSpan(position));
      for (int64_t i = 0; i < hidden; ++i) out[i] += position[i];
    }
  });
}

}  // namespace latentd
