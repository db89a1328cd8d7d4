#pragma once

#include <cstdint>

#include "kernels/cuda/plan_view.h"

namespace latentd {

inline constexpr float kLog2E = 1.4426950408889634f;  // scores are exponents of 2

// Rows of one sequence.
struct RowTile {
  int sequence = 0;
  int first_row = 0;  // of the step
  int rows = 0;       // 0: none
  int position = 0;   // of the first row
};

// Tile `index` of the step: sequence i has the tiles from cu_q_lens[i] / rows_per_tile + i on, of
// which some are empty.
__device__ inline RowTile TileOf(const StepView& step, int rows_per_tile, int index) {
  int low = 0, high = step.num_sequences - 1;
  while (low < high) {  // the last sequence that begins at or before `index`
    const int middle = (low + high + 1) / 2;
    if (step.cu_q_lens[middle] / rows_per_tile + middle <= index) {
      low = middle;
    } else {
      high = middle - 1;
    }
  }
  const int begin = step.cu_q_lens[low], end = step.cu_q_lens[low + 1];
  RowTile tile{.sequence = low};
  tile.first_row = begin + (index - begin / rows_per_tile - low) * rows_per_tile;
  tile.rows = max(0, min(rows_per_tile, end - tile.first_row));
  tile.position = step.kv_lens[low] - end + tile.first_row;
  return tile;
}

// The first position that the row at `position` sees in pages: of its window, after the sinks.
__device__ inline int FirstVisible(const PlanView& plan, int position) {
  const int first = plan.window > 0 ? max(0, position - plan.window + 1) : 0;
  return max(first, plan.sinks);
}

}  // namespace latentd
