#include "kernels/cpu/packed_weight.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_format.h"
#include "base/check.h"
#include "base/status_macros.h"

namespace latentd {
namespace {

// One row's block of 32 values, as a GGUF block or a slice of a superblock holds it.
struct RowBlock {
  uint8_t codes[kBlockValues];
  uint16_t d = 0;
  uint16_t m = 0;
  uint8_t s[2] = {0, 0};  // K types: s and t, or the two s of Q6_K
};

uint16_t Load16(const uint8_t* p) {
  uint16_t value;
  std::memcpy(&value, p, sizeof(value));
  return value;
}

void ReadNibbles(const uint8_t* nibbles, uint8_t* codes) {
  for (int i = 0; i < 16; ++i) {
    codes[i] = nibbles[i] & 15;
    codes[i + 16] = nibbles[i] >> 4;
  }
}

void ReadFiveBits(const uint8_t* high_bits, const uint8_t* nibbles, uint8_t* codes) {
  ReadNibbles(nibbles, codes);
  for (int i = 0; i < kBlockValues; ++i) {
    codes[i] |= (high_bits[i / 8] >> (i % 8) & 1) << 4;
  }
}

// The 6-bit scale and minimum of sub-block j of 8, packed in 12 bytes.
void ReadScaleMin(const uint8_t* packed, int j, uint8_t* s) {
  if (j < 4) {
    s[0] = packed[j] & 63;
    s[1] = packed[j + 4] & 63;
  } else {
    s[0] = (packed[j + 4] & 15) | (packed[j - 4] >> 6) << 4;
    s[1] = packed[j + 4] >> 4 | (packed[j] >> 6) << 4;
  }
}

void ReadQ4K(const uint8_t* super, int j, RowBlock* out) {
  out->d = Load16(super);
  out->m = Load16(super + 2);
  ReadScaleMin(super + 4, j, out->s);
  const uint8_t* nibbles = super + 16 + 32 * (j / 2);
  for (int i = 0; i < kBlockValues; ++i) out->codes[i] = nibbles[i] >> (4 * (j % 2)) & 15;
}

void ReadQ5K(const uint8_t* super, int j, RowBlock* out) {
  out->d = Load16(super);
  out->m = Load16(super + 2);
  ReadScaleMin(super + 4, j, out->s);
  const uint8_t* high_bits = super + 16;
  const uint8_t* nibbles = super + 48 + 32 * (j / 2);
  for (int i = 0; i < kBlockValues; ++i) {
    out->codes[i] = (nibbles[i] >> (4 * (j % 2)) & 15) | (high_bits[i] >> j & 1) << 4;
  }
}

void ReadQ6K(const uint8_t* super, int j, RowBlock* out) {
  const int half = j / 4, quarter = j % 4;
  const uint8_t* nibbles = super + 64 * half + 32 * (quarter % 2);
  const uint8_t* high_bits = super + 128 + 32 * half;
  for (int i = 0; i < kBlockValues; ++i) {
    out->codes[i] = (nibbles[i] >> (4 * (quarter / 2)) & 15) | (high_bits[i] >> (2 * quarter) & 3)
                                                                   << 4;
  }
  std::memcpy(out->s, super + 192 + 2 * j, 2);
  out->d = Load16(super + 208);
}

void ReadBlock(DType dtype, const uint8_t* row, int64_t block, RowBlock* out) {
  const uint8_t* p = row + block * Info(dtype).block_bytes;
  const uint8_t* super = row + block / kSuperBlocks * Info(dtype).block_bytes;
  const int sub_block = static_cast<int>(block % kSuperBlocks);
  switch (dtype) {
    case DType::kQ4_0:
      out->d = Load16(p);
      return ReadNibbles(p + 2, out->codes);
    case DType::kQ4_1:
      out->d = Load16(p);
      out->m = Load16(p + 2);
      return ReadNibbles(p + 4, out->codes);
    case DType::kQ5_0:
      out->d = Load16(p);
      return ReadFiveBits(p + 2, p + 6, out->codes);
    case DType::kQ5_1:
      out->d = Load16(p);
      out->m = Load16(p + 2);
      return ReadFiveBits(p + 4, p + 8, out->codes);
    case DType::kQ8_0:
      out->d = Load16(p);
      for (int i = 0; i < kBlockValues; ++i) out->codes[i] = p[2 + i] ^ 0x80;
      return;
    case DType::kQ4_K:
      return ReadQ4K(super, sub_block, out);
    case DType::kQ5_K:
      return ReadQ5K(super, sub_block, out);
    case DType::kQ6_K:
      return ReadQ6K(super, sub_block, out);
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      break;
  }
  LATENTD_CHECK(false);
}

int CodeBits(DType dtype) {
  switch (dtype) {
    case DType::kQ4_0:
    case DType::kQ4_1:
    case DType::kQ4_K:
      return 4;
    case DType::kQ5_0:
    case DType::kQ5_1:
    case DType::kQ5_K:
      return 5;
    case DType::kQ6_K:
      return 6;
    case DType::kQ8_0:
      return 8;
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      break;
  }
  return 0;
}

// Codes of one row into its places of a zeroed block of the panel.
void WriteCodes(int bits, const uint8_t* codes, int row, uint8_t* block) {
  for (int i = 0; i < kBlockValues; ++i) {
    const int quad = i / 4;
    const int place = 4 * row + i % 4;
    const uint8_t code = codes[i];
    if (bits == 8) {
      block[64 * quad + place] = code;
      continue;
    }
    block[64 * (quad % 4) + place] |= (code & 15) << (4 * (quad / 4));
    uint8_t* high = block + 256;
    if (bits == 5) high[place] |= (code >> 4) << quad;
    if (bits == 6) high[64 * (quad / 4) + place] |= (code >> 4) << (2 * (quad % 4));
  }
}

void WriteScales(DType dtype, const RowBlock& in, int64_t block, int row, uint8_t* scales) {
  const auto put16 = [&](int64_t offset, uint16_t value) {
    std::memcpy(scales + offset + 2 * row, &value, sizeof(value));
  };
  const int64_t super = block / kSuperBlocks;
  const int64_t sub_block = block % kSuperBlocks;
  switch (dtype) {
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kQ8_0:
      return put16(block * 32, in.d);
    case DType::kQ4_1:
    case DType::kQ5_1:
      put16(block * 64, in.d);
      return put16(block * 64 + 32, in.m);
    case DType::kQ4_K:
    case DType::kQ5_K:
      put16(super * kSuperScaleBytes, in.d);
      put16(super * kSuperScaleBytes + 32, in.m);
      scales[super * kSuperScaleBytes + 64 + sub_block * 32 + row] = in.s[0];
      scales[super * kSuperScaleBytes + 64 + sub_block * 32 + 16 + row] = in.s[1];
      return;
    case DType::kQ6_K:
      put16(super * kSuperScaleBytesQ6, in.d);
      scales[super * kSuperScaleBytesQ6 + 32 + sub_block * 32 + row] = in.s[0];
      scales[super * kSuperScaleBytesQ6 + 32 + sub_block * 32 + 16 + row] = in.s[1];
      return;
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      break;
  }
  LATENTD_CHECK(false);
}

void PackQuantizedPanel(const TensorView& view, const PanelLayout& layout, int64_t first_row,
                        uint8_t* panel) {
  const int rows = static_cast<int>(std::min<int64_t>(kPanelRows, view.rows - first_row));
  const int bits = CodeBits(view.dtype);
  for (int r = 0; r < rows; ++r) {
    const uint8_t* row = reinterpret_cast<const uint8_t*>(view.row(first_row + r));
    for (int64_t b = 0; b < layout.blocks; ++b) {
      RowBlock block;
      ReadBlock(view.dtype, row, b, &block);
      WriteCodes(bits, block.codes, r, panel + b * layout.code_bytes);
      WriteScales(view.dtype, block, b, r, panel + layout.scale_offset);
    }
  }
}

void PackPlainPanel(const TensorView& view, int64_t first_row, uint8_t* panel) {
  const int rows = static_cast<int>(std::min<int64_t>(kPanelRows, view.rows - first_row));
  const int64_t size = Info(view.dtype).block_bytes;
  for (int r = 0; r < rows; ++r) {
    const std::byte* row = view.row(first_row + r);
    for (int64_t k = 0; k < view.cols; ++k) {
      std::memcpy(panel + (k * kPanelRows + r) * size, row + k * size, size);
    }
  }
}

int64_t ScaleBytes(DType dtype, int64_t blocks) {
  switch (dtype) {
    case DType::kQ4_0:
    case DType::kQ5_0:
    case DType::kQ8_0:
      return blocks * 32;
    case DType::kQ4_1:
    case DType::kQ5_1:
      return blocks * 64;
    case DType::kQ4_K:
    case DType::kQ5_K:
      return blocks / kSuperBlocks * kSuperScaleBytes;
    case DType::kQ6_K:
      return blocks / kSuperBlocks * kSuperScaleBytesQ6;
    case DType::kF32:
    case DType::kF16:
    case DType::kBF16:
      break;
  }
  return 0;
}

}  // namespace

PanelLayout LayoutOf(DType dtype, int64_t cols) {
  PanelLayout layout;
  if (!IsQuantized(dtype)) {
    layout.panel_bytes = cols * kPanelRows * Info(dtype).block_bytes;
    layout.panel_bytes = (layout.panel_bytes + 63) / 64 * 64;
    return layout;
  }
  layout.blocks = cols / kBlockValues;
  layout.code_bytes = CodeBits(dtype) * kBlockValues * kPanelRows / 8;
  layout.scale_offset = layout.blocks * layout.code_bytes;
  layout.panel_bytes = (layout.scale_offset + ScaleBytes(dtype, layout.blocks) + 63) / 64 * 64;
  return layout;
}

absl::StatusOr<std::unique_ptr<PackedWeight>> PackedWeight::Create(const TensorView& view,
                                                                   WeightMemory& memory,
                                                                   ThreadPool& pool) {
  const int block_size = Info(view.dtype).block_size;
  if (view.rows <= 0 || view.cols <= 0 || view.cols % block_size != 0) {
    return absl::InvalidArgumentError(
        absl::StrFormat("weight of %d x %d values: both must be positive and the columns a "
                        "multiple of the block of %s, %d",
                        view.rows, view.cols, Info(view.dtype).name, block_size));
  }
  const PanelLayout layout = LayoutOf(view.dtype, view.cols);
  const int64_t panels = (view.rows + kPanelRows - 1) / kPanelRows;
  ASSIGN_OR_RETURN(std::shared_ptr<uint8_t[]> data, memory.Allocate(panels * layout.panel_bytes));
  pool.ParallelFor(panels, pool.Grain(panels), [&](int64_t begin, int64_t end, int) {
    for (int64_t p = begin; p < end; ++p) {
      uint8_t* panel = data.get() + p * layout.panel_bytes;
      if (IsQuantized(view.dtype)) {
        PackQuantizedPanel(view, layout, p * kPanelRows, panel);
      } else {
        PackPlainPanel(view, p * kPanelRows, panel);
      }
    }
  });
  return std::unique_ptr<PackedWeight>(new PackedWeight(view, layout, std::move(data)));
}

}  // namespace latentd
