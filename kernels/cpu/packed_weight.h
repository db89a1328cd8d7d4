#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>

#include "absl/status/statusor.h"
#include "kernels/cpu/thread_pool.h"
#include "kernels/cpu/weight_memory.h"
#include "kernels/ops.h"

namespace latentd {

// A weight in the order of the CPU's product kernels: panels of 16 output rows, which are the lanes
// of the accumulators, so a product needs no sums across lanes and a lane's arithmetic is the same
// for every batch size. Rows past the last are zero.
inline constexpr int kPanelRows = 16;
inline constexpr int kBlockValues = 32;  // values of one row that share a scale with 32 activations
inline constexpr int kSuperBlocks = 8;   // blocks in a superblock of the K types

// Memory of a panel:
//
//   F32 F16 BF16   values[cols][16 rows]
//   quantised      codes[blocks][code_bytes] | scales[blocks or superblocks]
//
// where cols is cut into blocks of 32. The codes of a block are unsigned and lie in quads of 4
// consecutive values, quad q holding values 4q .. 4q + 3 of each of 16 rows:
//
//   4 bits   [4][16 rows][4 bytes]: byte j of line i holds value j of quad i in its low nibble and
//            value j of quad i + 4 in its high one
//   5 bits   the low 4 bits, then the high bits: [16 rows][4 bytes], bit q of byte j belongs to
//            value j of quad q
//   6 bits   the low 4 bits, then the high pairs: [2][16 rows][4 bytes], bits 2i and 2i + 1 of byte
//            j of line p belong to value j of quad 4p + i
//   8 bits   [8][16 rows][4 bytes]: byte j of line q holds value j of quad q
//
// With fp16 d and m, and bytes s and t:
//
//   type             value                            scales
//   Q4_0 Q5_0 Q8_0   d * (code - 8, 16 or 128)        per block d[16]
//   Q4_1 Q5_1        d * code + m                     per block d[16] m[16]
//   Q4_K Q5_K        (d * s) * code - (m * t)         per superblock d[16] m[16], then per block
//                                                     s[16] t[16]
//   Q6_K             (d * s) * (code - 32), signed    per superblock d[16], then per block
//                    s for each 16 values             s[2][16]
struct PanelLayout {
  int64_t blocks = 0;        // of 32 values; 0 when not quantised
  int64_t code_bytes = 0;    // of one block of 16 rows
  int64_t scale_offset = 0;  // of the scales from the panel's start
  int64_t panel_bytes = 0;   // a multiple of 64
};
PanelLayout LayoutOf(DType dtype, int64_t cols);

// Memory of a panel's superblock of scales (K types).
inline constexpr int kSuperScaleBytes = 2 * 32 + kSuperBlocks * 32;  // Q4_K, Q5_K
inline constexpr int kSuperScaleBytesQ6 = 32 + kSuperBlocks * 32;    // Q6_K

// The packed copy of a weight; the matrix that it was made from is no longer needed. Immutable, so
// any thread may read it.
class PackedWeight final : public Weight {
 public:
  // INVALID_ARGUMENT for an empty matrix or cols that are no multiple of the type's block,
  // RESOURCE_EXHAUSTED for want of memory. Works on the pool's threads.
  static absl::StatusOr<std::unique_ptr<PackedWeight>> Create(const TensorView& view,
                                                              WeightMemory& memory,
                                                              ThreadPool& pool);

  int64_t bytes() const override { return panels() * layout_.panel_bytes; }
  int64_t panels() const { return (rows() + kPanelRows - 1) / kPanelRows; }
  const PanelLayout& layout() const { return layout_; }
  const uint8_t* panel(int64_t p) const { return data_.get() + p * layout_.panel_bytes; }

 private:
  PackedWeight(const TensorView& view, PanelLayout layout, std::shared_ptr<const uint8_t[]> data)
      : Weight(view), layout_(layout), data_(std::move(data)) {}

  const PanelLayout layout_;
  const std::shared_ptr<const uint8_t[]> data_;
};

}  // namespace latentd
